"""Distances between two sets of logits."""

from __future__ import annotations

from collections.abc import Sequence
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
    """How close two sets of logits are, row by row.

    kl: float64 [T], nats. same_best: bool [T], whether both have the same most likely token.
    """

    kl: F64
    same_best: npt.NDArray[np.bool_]

    @property
    def mean_kl(self) -> float:
        return float(self.kl.mean())

    def summary(self) -> dict[str, float]:
        """Mean and largest KL in nats, share of rows with the same best token."""
        return {"mean_kl": self.mean_kl, "max_kl": float(self.kl.max()), "top1": float(self.same_best.mean())}

    def __str__(self) -> str:
        return f"mean KL {self.mean_kl:.3g}, max {self.kl.max():.3g} nats, same best {self.same_best.mean():.2%}"


def agreement(reference: F32, other: F32) -> Agreement:
    """Compare two [T, vocab_size] logits row by row."""
    same_best = reference.argmax(axis=-1) == other.argmax(axis=-1)
    return Agreement(kl_divergence(reference, other), same_best)


def joined(parts: Sequence[Agreement]) -> Agreement:
    """The agreement over all rows of several."""
    return Agreement(np.concatenate([part.kl for part in parts]), np.concatenate([part.same_best for part in parts]))


def negative_log_likelihoods(logits: F32, targets: npt.NDArray[np.int64]) -> F64:
    """-log p(target) per row of [T, vocab_size] logits, float64 [T], nats."""
    out = np.empty(len(targets))
    for start in range(0, len(targets), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        logprobs = log_softmax(logits[rows])
        out[rows] = -logprobs[np.arange(len(logprobs)), targets[rows]]
    return out
