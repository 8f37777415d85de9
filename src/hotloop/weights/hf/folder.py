"""HFFolder: a Hugging Face folder (config.json, safetensors, tokenizer) as a ModelFile, in GGUF's terms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.quant.formats import WEIGHT_FORMATS, dequantize
from hotloop.weights.hf.architecture import Architecture, Rule
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.configuration import read_configuration
from hotloop.weights.hf.generation import sampling_metadata
from hotloop.weights.hf.keys import config_name
from hotloop.weights.hf.names import Names
from hotloop.weights.hf.quantized import gather_weights
from hotloop.weights.hf.shards import Shards, open_shards
from hotloop.weights.hf.sources import FORMATS, AsStored, InMemory, PermutedHeads, PlusOne, TensorSource, Transposed
from hotloop.weights.hf.tokenizer import tokenizer_metadata
from hotloop.weights.model_file import MetadataValue, ModelFile, TensorInfo, quote
from hotloop.weights.model_folder import companions
from hotloop.weights.safetensors import StoredTensor

_COMPARED_ELEMENTS = 1 << 22  # of two matrices, at a time


class HFFolder(ModelFile):
    """A folder whose tensors and keys have the names, shapes and values that llama.cpp's converter would write.

    Tensors keep their dtype (bf16, f16, f32); what the converter changes is changed on reading, in chunks of rows. The only
    thing it cuts and this does not are rows of the embedding beyond the vocabulary.
    """

    def __init__(
        self,
        path: Path,
        shards: Shards,
        metadata: Mapping[str, MetadataValue],
        sources: Mapping[str, TensorSource],
        names: Names,
        config: HFConfig,
    ) -> None:
        """Use `HFFolder.open`."""
        beside = companions([file.name for file in path.iterdir() if file.is_file()])
        ordered = dict(sorted(sources.items(), key=lambda item: item[1].order))
        super().__init__(
            path,
            (*(path / name for name in beside), *(file.path for file in shards.files)),
            metadata,
            {name: _info(name, source) for name, source in ordered.items()},
            sum(file.nbytes for file in shards.files),
        )
        self._shards = shards
        self._sources = ordered
        self._names = names
        self._config = config

    @classmethod
    def open(cls, path: str | Path) -> HFFolder:
        """Read the configuration and the headers of all weights; the weights themselves are left where they are.

        Raises: ModelNotFoundError if there is no such folder; ModelFileError naming the file, and the key or tensor, that is
        missing, malformed or not implemented.
        """
        path = Path(path)
        architecture, config = read_configuration(path)
        metadata = {f"{architecture.name}.{key}": value for key, value in architecture.metadata(config).items()}
        generated = architecture.generated(config)
        config.require("is_causal", None, True)  # of every class
        tied = config.flag("tie_word_embeddings")
        switches = {key: config.flag(key) for key in architecture.switches}
        quantization = config.section("quantization_config")
        config.check_all_used(architecture.harmless)
        shards = open_shards(path)
        try:
            names = Names(architecture, path)
            sources: dict[str, TensorSource] = {name: InMemory(values) for name, values in generated.items()}
            for source_name, stored in gather_weights(shards.tensors, quantization).items():
                if (name := names.translate(source_name)) is not None:
                    heads = _num_heads(metadata, architecture, names.rule(name))
                    sources[name] = _source(stored, names.rule(name), heads, f"{path}: tensor {quote(source_name)}")
            if tied and _is_copy(sources.get("output.weight"), sources.get("token_embd.weight")):
                del sources["output.weight"]
            if not tied and "output.weight" not in sources:
                raise ModelFileError(
                    f"{path}: the tensor {names.source('output.weight')} is missing, and tie_word_embeddings is false"
                )
            for key, ending in architecture.switches.items():
                if switches[key] != any(name.endswith(ending) for name in sources):
                    there = "are missing" if switches[key] else "are there"
                    raise config.error(key, f"contradicts the weights: the tensors *{ending} (in GGUF's names) {there}")
            embedding = sources.get("token_embd.weight")
            metadata |= tokenizer_metadata(path, embedding.shape[0] if embedding and embedding.shape else None)
            metadata |= sampling_metadata(path)
            metadata |= {"general.architecture": architecture.name, "general.name": _text(path.resolve().name)}
            return cls(path, shards, metadata, sources, names, config)
        except BaseException:
            shards.close()
            raise

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        self.info(name)
        try:
            return self._sources[name].read_rows(start, stop)
        except OSError as error:
            raise self.unreadable(name, str(error.strerror)) from None
        except EOFError as error:
            raise self.unreadable(name, str(error)) from None

    def location(self, name: str) -> tuple[int, int] | None:
        self.info(name)
        return self._sources[name].location

    def source_name(self, name: str) -> str:
        """The folder's own name of a tensor, whether or not it is there."""
        return self._names.source(name)

    def source_key(self, key: str) -> str | None:
        """The key in config.json that a metadata key comes from."""
        return config_name(self._config, key.partition(".")[2])

    def close(self) -> None:
        self._shards.close()


def _is_copy(head: TensorSource | None, embedding: TensorSource | None) -> bool:
    """Whether there is a head that has the values of the embedding. One that differs is used, as transformers does, whatever
    the configuration says."""
    if head is None or embedding is None or head.shape != embedding.shape or len(head.shape) != 2:
        return False
    rows, columns = head.shape
    step = max(_COMPARED_ELEMENTS // columns, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        shape = (stop - start, columns)
        values, others = (dequantize(each.format, each.read_rows(start, stop), shape) for each in (head, embedding))
        if not np.array_equal(values, others):
            return False
    return True


def _text(file_name: str) -> str:
    """A file's name, which need be no text, as one."""
    return os.fsencode(file_name).decode(errors="replace")


def _num_heads(metadata: Mapping[str, Any], architecture: Architecture, rule: Rule) -> int:
    """Heads that a tensor's rows are of."""
    of_keys = "_kv" if rule.change == "permuted_k" else ""
    return int(metadata[f"{architecture.name}.attention.head_count{of_keys}"])


def _source(stored: StoredTensor | TensorSource, rule: Rule, num_heads: int, what: str) -> TensorSource:
    """How a tensor is read. what: it, for messages. Raises ModelFileError for a dtype or a shape that does not fit."""
    if isinstance(stored, StoredTensor) and stored.dtype not in FORMATS:
        raise ModelFileError(f"{what} is {stored.dtype}; hotloop reads BF16, F16 and F32: save the model in one of these")
    if not 1 <= len(stored.shape) <= 2 or 0 in stored.shape:
        raise ModelFileError(f"{what} has the shape {list(stored.shape)}; hotloop reads vectors and matrices")
    if rule.change == "transposed" and len(stored.shape) == 2:
        if isinstance(stored, TensorSource):
            raise ModelFileError(f"{what} is quantized along the wrong axis for hotloop; take a checkpoint in bf16 or f16")
        return Transposed(stored)
    source = AsStored(stored) if isinstance(stored, StoredTensor) else stored
    if rule.change in ("permuted_q", "permuted_k"):
        if source.shape[0] % (2 * num_heads):
            raise ModelFileError(f"{what} has {source.shape[0]} rows, which are not {num_heads} heads of an even size")
        return PermutedHeads(source, num_heads)
    return PlusOne(source) if rule.change == "plus_one" else source


def _info(name: str, source: TensorSource) -> TensorInfo:
    nbytes = WEIGHT_FORMATS[source.format].tensor_bytes(source.shape)
    return TensorInfo(name, source.shape, source.format, nbytes)
