"""Traffic: the bytes a decode step must read. The currency of decode (docs/telemetry.md)."""

from __future__ import annotations

from hotloop.models.registry import Model
from hotloop.weights.gguf import GGUFFile


def weight_bytes_per_step(model: Model, gguf: GGUFFile) -> int:
    """Bytes of weights one decode step reads: every tensor once, but only one row of an embedding that is not also the
    output matrix."""
    total = sum(gguf.tensors[name].nbytes for name in model.tensor_shapes if name in gguf.tensors)
    if not model.config.tied_embeddings:
        embedding = gguf.tensors["token_embd.weight"]
        total -= embedding.nbytes - embedding.nbytes // embedding.shape[0]
    return total
