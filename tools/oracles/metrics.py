"""Distances between two sets of logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf_model import F32, F64

ROWS_AT_A_TIME = 32  # a row of a 262,144-token vocabulary is 2 MB in float64


def log_softmax(logits: F32 | F64) -> F64:
    """Log-probabilities over the last axis, float64, nats."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logprobs: F64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logprobs


def kl_divergence(reference: F32, other: F32) -> F64:
    """KL(reference || other) per row of two [T, vocab_size] logits, float64 [T], nats."""
    out = np.empty(len(reference))
    for start in range(0, len(reference), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        p, q = log_softmax(reference[rows]), log_softmax(other[rows])
        out[rows] = (np.exp(p) * (p - q)).sum(axis=-1)
    return out


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close two sets of logits are: mean and largest KL in nats, share of rows with one best token."""

    mean_kl: float
    max_kl: float
    top1: float


def agreement(reference: F32, other: F32) -> Agreement:
    """Compare two [T, vocab_size] logits row by row."""
    kl = kl_divergence(reference, other)
    same = reference.argmax(axis=-1) == other.argmax(axis=-1)
    return Agreement(float(kl.mean()), float(kl.max()), float(same.mean()))


def negative_log_likelihoods(logits: F32, targets: npt.NDArray[np.int64]) -> F64:
    """-log p(target) per row of [T, vocab_size] logits, float64 [T], nats."""
    out = np.empty(len(targets))
    for start in range(0, len(targets), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        logprobs = log_softmax(logits[rows])
        out[rows] = -logprobs[np.arange(len(logprobs)), targets[rows]]
    return out
