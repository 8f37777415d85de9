"""What a quantization cost: the new file against its source on a text, as this machine runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.weights.model_file import ModelFile

_OPERATIONS = 1e12  # of the source's forward passes: about a minute on two cores
_LEAST_TOKENS = 256


def quality_report(source: ModelFile, result: ModelFile, threads: int | None) -> dict[str, float]:
    """Fields of `quality` in telemetry/schema.toml. Of a large model fewer tokens are computed.

    Raises: ModelFileError if hotloop cannot run the model, CapacityError if both do not fit in memory at once.
    """
    from math import prod

    from hotloop.bench.quality import measure, native_logits, quality_text
    from hotloop.errors import CapacityError
    from hotloop.machine import available_memory_bytes
    from hotloop.models.registry import load_model_spec
    from hotloop.text.tokenizer import Tokenizer

    context_tokens = load_model_spec(source).config.context_length
    needed = sum(info.nbytes for model in (source, result) for info in model.tensors.values())
    if needed > available_memory_bytes():
        raise CapacityError(
            f"both models together take {needed} bytes of memory and {available_memory_bytes()} are free"
        )
    parameters = sum(prod(info.shape) for info in source.tensors.values())
    most = max(int(_OPERATIONS / (2 * parameters)), _LEAST_TOKENS)
    ids = Tokenizer.from_metadata(result.metadata).encode(quality_text())[: min(most, context_tokens)]
    reference = native_logits(source, ids, activations="int8", threads=threads)
    return measure(ids, reference, native_logits(result, ids, activations="int8", threads=threads)).figures()
