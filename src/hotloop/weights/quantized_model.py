"""QuantizedModel: another model file with its weights in fewer bits, made as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.config import EngineConfig
from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.quant.formats import DEQUANTIZABLE_FORMATS, WEIGHT_FORMATS, dequantize
from hotloop.weights.model_file import MetadataValue, ModelFile, TensorInfo, quote
from hotloop.weights.open_model import open_model
from hotloop.weights.quantization import (
    FLOAT_FORMATS,
    QUANTIZATIONS,
    ModelFacts,
    Quantization,
    is_fallback,
    tensor_format,
)

Progress = Callable[[int, int], None]
"""Called with the bytes of the source that are done, and with those to do in all."""

_CHUNK_BYTES = 16 << 20  # of the source, at a time
_FORMAT_VERSION = 2  # general.quantization_version: how ggml lays out quantized blocks


class QuantizedModel(ModelFile):
    """`source` with the formats of a `Quantization`; its bytes are the same on every machine, for any number of threads.

    quantization: which. fallbacks: names of the tensors whose row length keeps them from the format that they should have.
    Nothing is kept: what is read twice is quantized twice. Closing it closes the source.
    """

    def __init__(
        self,
        source: ModelFile,
        name: str,
        *,
        threads: int | None = None,
        requantize: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """name: a key of QUANTIZATIONS. requantize: also take weights that are quantized already; what the first
        quantization lost stays lost. progress: told about every piece.

        Raises: InvalidRequestError for an unknown name or a number of threads that is none; ModelFileError for a source that
        is quantized already, unless `requantize`, or in formats nobody can read.
        """
        self.quantization = _quantization(name)
        facts = _facts(source)
        formats = _formats(source, self.quantization, facts)
        changed = [source.tensors[name] for name, format in formats.items() if format != source.tensors[name].format]
        _check_source(source, changed, requantize)
        metadata: dict[str, MetadataValue] = {
            **source.metadata,
            "general.file_type": self.quantization.file_type,
            "general.quantization_version": _FORMAT_VERSION,
        }
        tensors = {info.name: _with_format(info, formats[info.name]) for info in source.tensors.values()}
        super().__init__(source.path, source.paths, metadata, tensors, source.nbytes)
        self.source = source
        self.fallbacks = [info.name for info in changed if is_fallback(self.quantization, info.name, info.shape, facts)]
        self._threads = EngineConfig(threads=threads).num_threads
        self._team: _native.ThreadTeam | None = None
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = sum(info.nbytes for info in changed)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        info = self.info(name)
        before = self.source.info(name)
        if info.format == before.format:
            return self.source.read_rows(name, start, stop)
        out = np.empty((stop - start) * info.row_bytes, np.uint8)
        step = max(_CHUNK_BYTES // before.row_bytes, 1)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            rows = self.source.read_rows(name, first, last)
            self._quantize(
                info, before, first, rows, out[(first - start) * info.row_bytes : (last - start) * info.row_bytes]
            )
            self._report(rows.nbytes)
        return out

    def location(self, name: str) -> tuple[int, int] | None:
        same = self.info(name).format == self.source.info(name).format
        return self.source.location(name) if same else None

    def number_type(self, key: str) -> np.dtype[np.generic] | None:
        return self.source.number_type(key)

    def source_name(self, name: str) -> str:
        return self.source.source_name(name)

    def source_key(self, key: str) -> str | None:
        return self.source.source_key(key)

    def close(self) -> None:
        self._team = None
        self.source.close()

    def _quantize(
        self, info: TensorInfo, before: TensorInfo, first_row: int, rows: NDArray[np.uint8], out: NDArray[np.uint8]
    ) -> None:
        """rows: of the source, from first_row on. out: their place in the result."""
        columns = info.shape[-1]
        source_format = before.format
        if source_format not in FLOAT_FORMATS:
            rows = (
                dequantize(source_format, rows, (rows.nbytes // before.row_bytes, columns)).reshape(-1).view(np.uint8)
            )
            source_format = "F32"
        if self._team is None:
            self._team = _native.ThreadTeam(self._threads)
        fault, element = _native.quantize_weights(
            _native.WeightFormat[info.format], _native.WeightFormat[source_format], rows, out, self._team
        )
        if fault:
            what = "is infinite or no number" if fault == "not finite" else f"is too large for {info.format}"
            mend = "the file is damaged" if fault == "not finite" else "choose another type, such as bf16"
            raise ModelFileError(
                f"{self.path}: the tensor {quote(self.source_name(info.name))} cannot be quantized: "
                f"row {first_row + element // columns}, column {element % columns} {what}; {mend}"
            )

    def _report(self, done_bytes: int) -> None:
        self._done_bytes = min(self._done_bytes + done_bytes, self._total_bytes)
        if self._progress is not None:
            self._progress(self._done_bytes, self._total_bytes)


def open_quantized(
    path: str | Path, name: str | None, *, threads: int | None = None, progress: Progress | None = None
) -> ModelFile:
    """`open_model`, quantized to `name` if there is one. Raises as `open_model` and `QuantizedModel`."""
    source = open_model(path)
    if name is None:
        return source
    try:
        return QuantizedModel(source, name, threads=threads, progress=progress)
    except BaseException:
        source.close()
        raise


def _quantization(name: str) -> Quantization:
    quantization = QUANTIZATIONS.get(name.lower())
    if quantization is None:
        raise InvalidRequestError(f"the quantization {name!r:.40} is unknown; choose one of {', '.join(QUANTIZATIONS)}")
    return quantization


def _facts(source: ModelFile) -> ModelFacts:
    architecture = source.get_str("general.architecture")
    return ModelFacts(source.get_int(f"{architecture}.block_count", 0), tied="output.weight" not in source.tensors)


def _formats(source: ModelFile, quantization: Quantization, facts: ModelFacts) -> dict[str, str]:
    return {
        info.name: tensor_format(quantization, info.name, info.shape, facts)
        if info.format in DEQUANTIZABLE_FORMATS
        else info.format
        for info in source.tensors.values()
    }


def _with_format(info: TensorInfo, format: str) -> TensorInfo:
    return TensorInfo(info.name, info.shape, format, WEIGHT_FORMATS[format].tensor_bytes(info.shape))


def _check_source(source: ModelFile, changed: Iterable[TensorInfo], requantize: bool) -> None:
    quantized = [info for info in changed if info.format not in FLOAT_FORMATS]
    if quantized and not requantize:
        raise ModelFileError(
            f"{source.path}: the weights are quantized already ({quote(source.source_name(quantized[0].name))} is "
            f"{quantized[0].format}), and quantizing them again loses more than quantizing the original once; "
            f"take the F16 or BF16 file, or force it with `hotloop quantize --allow-requantize`"
        )
