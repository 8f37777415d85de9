"""Rotary position embeddings in float64, with the scalings GGUF metadata can ask for.

Source: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071), section 3.2 and 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from gguf_model import F64, GgufModel


@dataclass(frozen=True, slots=True)
class Rope:
    """Angular frequency of each rotated pair, float64 [rotary_dim / 2], radian per token; how pairs lie."""

    frequencies: F64
    magnitude: float
    interleaved: bool

    def rotate(self, x: F64) -> F64:
        """Rotate x, float64 [T, heads, head_dim], row t by position t; the tail past rotary_dim stays."""
        half = len(self.frequencies)
        angle = np.arange(len(x), dtype=np.float64)[:, None, None] * self.frequencies
        cos, sin = np.cos(angle) * self.magnitude, np.sin(angle) * self.magnitude
        first = np.s_[..., 0 : 2 * half : 2] if self.interleaved else np.s_[..., :half]
        second = np.s_[..., 1 : 2 * half : 2] if self.interleaved else np.s_[..., half : 2 * half]
        out = x.copy()
        out[first] = x[first] * cos - x[second] * sin
        out[second] = x[first] * sin + x[second] * cos
        return out


def _yarn_ramp(rotary_dim: int, base: float, original_context: int, fast: float, slow: float) -> F64:
    """Share of the unscaled frequency per pair, float64 [rotary_dim / 2] in [0, 1] (YaRN's gamma)."""

    def pair_with_turns(turns: float) -> float:
        return rotary_dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_with_turns(fast)), 0)
    high = min(math.ceil(pair_with_turns(slow)), rotary_dim - 1)
    ramp = (np.arange(rotary_dim // 2, dtype=np.float64) - low) / max(high - low, 0.001)
    return 1.0 - np.clip(ramp, 0.0, 1.0)


def model_rope(model: GgufModel, head_dim: int, *, local: bool = False) -> Rope:
    """The rotation of a model's layers; `local`: of gemma3's windowed layers (own base, never scaled)."""
    rotary_dim = int(model.parameter("rope.dimension_count", head_dim))
    interleaved = model.architecture == "llama"
    pairs = np.arange(rotary_dim // 2, dtype=np.float64)
    if local:
        base = float(model.parameter("rope.freq_base_swa", 10_000.0))
        return Rope(base ** (-2.0 * pairs / rotary_dim), 1.0, interleaved)
    base = float(model.parameter("rope.freq_base", 10_000.0))
    frequencies = base ** (-2.0 * pairs / rotary_dim)
    if model.has("rope_freqs.weight"):
        frequencies = frequencies / model.vector("rope_freqs.weight")
    magnitude = 1.0
    # A file with a factor and no type is from before there were types: linear was all there was.
    scaling = str(model.parameter("rope.scaling.type", "linear"))
    factor = float(model.parameter("rope.scaling.factor", model.parameter("rope.scale_linear", 1.0)))
    if scaling == "linear":
        frequencies = frequencies / factor
    elif scaling == "yarn":
        context = model.parameter("context_length")
        original = int(model.parameter("rope.scaling.original_context_length", context))
        beta_fast = float(model.parameter("rope.scaling.yarn_beta_fast", 32.0))
        beta_slow = float(model.parameter("rope.scaling.yarn_beta_slow", 1.0))
        keep = _yarn_ramp(rotary_dim, base, original, beta_fast, beta_slow)
        frequencies = frequencies * keep + frequencies / factor * (1.0 - keep)
        magnitude = float(model.parameter("rope.scaling.attn_factor", 1.0)) * (1.0 + 0.1 * math.log(factor))
    elif scaling != "none":
        raise ValueError(f"{model.path}: rope scaling {scaling!r} has no float64 oracle")
    return Rope(frequencies, magnitude, interleaved)
