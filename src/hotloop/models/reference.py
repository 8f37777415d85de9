"""Run a model with the reference op set: what tests, and other op sets, compare their logits with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.config import ActivationDtype
from hotloop.models.config import kv_groups
from hotloop.models.dense import Output
from hotloop.models.registry import load_model_spec
from hotloop.ops.batch import Chunk, build_batch
from hotloop.ops.reference import ReferenceKV, ReferenceKVDtype, ReferenceOps, ReferenceWeights
from hotloop.weights.model_file import ModelFile
from hotloop.weights.open_model import open_model


def reference_logits(
    model: str | Path | ModelFile,
    token_ids: Sequence[int],
    *,
    chunk_lengths: Sequence[int] | None = None,
    block_size: int = 16,
    activations: ActivationDtype = "int8",
    dtype: type[np.floating[Any]] = np.float32,
    kv_dtype: ReferenceKVDtype | None = None,
    layers: range | None = None,
    output: Output = "logits",
    keep_weights: bool = True,
) -> NDArray[Any]:
    """Logits [tokens, vocab_size] (or hidden states [tokens, hidden]) of every token of one request.

    chunk_lengths: tokens per step, adding up to the number of tokens; None for all in one step. dtype:
    float64 for the exact forward pass, see ReferenceOps. kv_dtype: None for the same as `dtype`. layers,
    output: of the model's forward. keep_weights: keep dequantized matrices between steps, 4 bytes per weight.
    """
    model_file = model if isinstance(model, ModelFile) else open_model(model)
    spec = load_model_spec(model_file)
    weights = ReferenceWeights(model_file, keep=keep_weights)
    groups = kv_groups(spec.config)
    num_blocks = -(-len(token_ids) // block_size)
    kv = ReferenceKV(groups, num_blocks=num_blocks, block_size=block_size, dtype=kv_dtype or dtype)
    # Backwards, so that no block is where its positions are.
    blocks = list(reversed(range(num_blocks)))
    lengths = [len(token_ids)] if chunk_lengths is None else chunk_lengths
    assert sum(lengths) == len(token_ids), "chunk_lengths must add up to the number of tokens"
    results = []
    start = 0
    for length in lengths:
        chunk = Chunk(token_ids[start : start + length], start, [blocks] * len(groups))
        ops = ReferenceOps(build_batch([chunk], block_size), kv, activations=activations, dtype=dtype)
        results.append(spec.forward(ops, weights, spec.config, layers, output))
        start += length
    return np.concatenate(results)
