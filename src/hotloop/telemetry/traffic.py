"""Traffic: the bytes a decode step must read and the arithmetic it does (docs/telemetry.md)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hotloop.models.registry import Model
from hotloop.weights.model_file import ModelFile


def weight_bytes_per_step(model: Model, model_file: ModelFile) -> int:
    """Bytes of weights one decode step reads: every tensor once, but only one row of the embedding of positions, and of one of
    tokens that is not also the output matrix."""
    tables = [] if model.config.tied_embeddings else ["token_embd.weight"]
    tables += ["position_embd.weight"] if model.config.learned_positions else []
    others = (model_file.tensors[name] for name in tables)
    return model.weight_bytes(model_file) - sum(table.nbytes - table.row_bytes for table in others)


def flops_per_step(model: Model, positions: Sequence[int], num_logits_rows: int) -> int:
    """Operations of one step's matrix products and attention, a multiply-add being two.

    positions: absolute position of each token of the step. num_logits_rows: tokens that get logits.
    """
    config = model.config
    matrices = (shape for name, shape in model.tensor_shapes.items() if name.startswith("blk.") and len(shape) == 2)
    linear = sum(map(prod, matrices)) * len(positions) + config.vocab_size * config.hidden_size * num_logits_rows
    # q . k and p . v over the positions that a token sees, itself included.
    seen = sum(
        min(position + 1, layer.window) if layer.window else position + 1
        for layer in config.layers
        for position in positions
    )
    return 2 * linear + 4 * config.num_heads * config.head_dim * seen
