"""Each peculiarity of an architecture, left out: the golden logits must not be met then, or no test would miss it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import CASES
from hotloop.models import olmo2
from hotloop.models.rope import RopeConfig
from hotloop.ops import reference
from hotloop.ops.reference import ReferenceOps
from unit.models.test_model_goldens import golden_logits, limit, our_logits

Mutation = Callable[[pytest.MonkeyPatch], None]


def method(name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Mutation:
    """The op `name` replaced by what `make` makes of it."""
    return lambda patch: patch.setattr(ReferenceOps, name, make(getattr(ReferenceOps, name)))


def exact_gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2


def normed_by_head(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm; of rows of q and k, head by head of 16."""
    heads = x.reshape(*x.shape[:-1], -1, 16 if x.ndim == 3 else x.shape[-1]).astype(np.float64)
    normed = heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + eps)
    return normed.reshape(x.shape) * gain


def normed_before(qkv: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: ReferenceOps, x: np.ndarray, *arguments: Any) -> Any:
        return qkv(self, self.norm(x, np.ones(x.shape[1], np.float32), 1e-6), *arguments)

    return run


def without_residual_norms(norm: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: ReferenceOps, x: np.ndarray, gain: np.ndarray, eps: float, residual: np.ndarray | None = None) -> Any:
        return norm(self, x, gain, eps) if residual is None else x + residual

    return run


def scaled_everywhere(patch: pytest.MonkeyPatch) -> None:
    def scaled(**arguments: Any) -> RopeConfig:
        return RopeConfig(**arguments, scaling="yarn", factor=4.0, original_context=32)

    patch.setattr(olmo2, "RopeConfig", scaled)


QUIRKS: list[tuple[str, str, Mutation]] = [
    (
        "gpt2",
        "positions",
        method("embed", lambda op: lambda self, table, scale, positions: op(self, table, scale=scale)),
    ),
    (
        "gpt2",
        "the mean of a layer norm",
        method("layer_norm", lambda _: lambda self, x, gain, bias, eps: self.norm(x, gain, eps) + bias),
    ),
    (
        "gpt2",
        "the bias of a layer norm",
        method("layer_norm", lambda op: lambda self, x, gain, bias, eps: op(self, x, gain, 0 * bias, eps)),
    ),
    ("gpt2", "the tanh form", lambda patch: patch.setitem(reference._ACTIVATIONS, "gelu_tanh", exact_gelu)),
    (
        "starcoder2",
        "the bias of up",
        method("up", lambda op: lambda self, x, weight, activation, bias: op(self, x, weight, activation)),
    ),
    (
        "starcoder2",
        "the other biases",
        method("linear", lambda op: lambda self, x, weight, bias=None, **others: op(self, x, weight, **others)),
    ),
    (
        "starcoder2",
        "halves that rotate",
        method("plan_rope", lambda op: lambda self, rope: op(self, replace(rope, style="interleaved"))),
    ),
    ("olmo2", "norms over rows", lambda patch: patch.setattr(reference, "_rms_norm", normed_by_head)),
    (
        "olmo2",
        "norms after both halves",
        method("norm", without_residual_norms),
    ),
    ("olmo2", "no norms before", method("qkv", normed_before)),
    ("olmo3", "sliding layers that are not scaled", scaled_everywhere),
    (
        "glm4",
        "pairs that rotate",
        method("plan_rope", lambda op: lambda self, rope: op(self, replace(rope, style="half_split"))),
    ),
    (
        "glm4",
        "gate before up",
        method("gate_up", lambda op: lambda self, x, gate, up, activation: op(self, x, up, gate, activation)),
    ),
    (
        "glm4",
        "norms after both halves",
        method("norm", without_residual_norms),
    ),
]


@pytest.mark.parametrize(("name", "what", "mutation"), QUIRKS, ids=[f"{name}: {what}" for name, what, _ in QUIRKS])
def test_what_is_special_shows(
    name: str, what: str, mutation: Mutation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == name)
    golden = golden_logits(case)
    path = case.write(tmp_path / "m.gguf")
    assert np.abs(our_logits(path, case) - golden).max() <= limit(case, golden)
    mutation(monkeypatch)
    assert np.abs(our_logits(path, case) - golden).max() > 30 * limit(case, golden), what
