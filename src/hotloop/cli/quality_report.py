"""What a quantization cost: the new file against its source on a text, as this machine runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.weights.model_file import ModelFile

_OPERATIONS = 1e12  # of the source's forward passes: about a minute on two cores
_LEAST_TOKENS = 256


def quality_report(source: ModelFile, result: ModelFile, threads: int | None) -> dict[str, float]:
    """Fields of `quality` in telemetry/schema.toml. Of a large model fewer tokens are computed.

    Raises: ModelFileError if hotloop cannot run the model, or its logits are no numbers; CapacityError if both do not fit
    in memory at once.
    """
    from math import prod

    import numpy as np

    from hotloop.bench.quality import measure, native_logits, quality_text
    from hotloop.errors import CapacityError, ModelFileError
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
    ids = Tokenizer.of_model(result).encode(quality_text())[: min(most, context_tokens)]
    reference = native_logits(source, ids, activations="int8", threads=threads)
    with np.errstate(all="ignore"):
        distance = measure(ids, reference, native_logits(result, ids, activations="int8", threads=threads))
    if not np.isfinite(distance.kl_nats).all():
        whose = result if np.isfinite(distance.reference_nll_nats).all() else source
        raise ModelFileError(f"{whose.path}: the model's logits on the text are infinite or no number")
    return distance.figures()
