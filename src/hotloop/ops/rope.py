"""Rotary frequencies and their scaling, computed without libm so that every machine gets the same bits."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RopeScaling = Literal["none", "linear", "yarn"]

_PI = Decimal("3.14159265358979323846264338327950288419716939937510")
_CONTEXT = Context(prec=50)


def rope_frequencies(
    dim: int,
    base: float,
    *,
    scaling: RopeScaling = "none",
    factor: float = 1.0,
    original_context: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    freq_factors: tuple[float, ...] | None = None,
) -> NDArray[np.float64]:
    """Angle per position of each rotated pair: float64 [dim / 2], radians, correctly rounded.

    dim: rotated elements per head, even. base: > 1. factor: how far the context is stretched, > 0.
    original_context: tokens, the length that YaRN stretches. beta_fast, beta_slow: turns within it beyond
    which YaRN leaves a pair alone, and below which it stretches it fully. freq_factors: [dim / 2], each
    pair's frequency is divided by it first (Llama 3 files carry them as the tensor rope_freqs.weight).

    Source: RoFormer (arXiv 2104.09864); position interpolation (2306.15595); YaRN (2309.00071), section 3.
    """
    assert dim > 0
    assert dim % 2 == 0
    assert base > 1
    assert factor > 0
    half = dim // 2
    with localcontext(_CONTEXT):
        step = (Decimal(base).ln() * -2 / dim).exp()
        frequencies = [Decimal(1)]
        while len(frequencies) < half:
            frequencies.append(frequencies[-1] * step)
        if freq_factors is not None:
            assert len(freq_factors) == half
            frequencies = [f / Decimal(x) for f, x in zip(frequencies, freq_factors, strict=True)]
        if scaling == "linear":
            frequencies = [f / Decimal(factor) for f in frequencies]
        elif scaling == "yarn":
            stretch = _yarn_ramp(dim, base, original_context, beta_fast, beta_slow)
            frequencies = [
                f / Decimal(factor) * s + f * (1 - s) for f, s in zip(frequencies, stretch, strict=True)
            ]
        return np.array([float(f) for f in frequencies], dtype=np.float64)


def yarn_attention_factor(factor: float) -> float:
    """What YaRN multiplies cos and sin by: 0.1 ln(factor) + 1, and 1 where nothing is stretched."""
    if factor <= 1.0:
        return 1.0
    with localcontext(_CONTEXT):
        return float(Decimal(factor).ln() / 10 + 1)


def _yarn_ramp(
    dim: int, base: float, original_context: int, beta_fast: float, beta_slow: float
) -> list[Decimal]:
    """How far each pair is stretched, from 0 (not at all) to 1 (fully): [dim / 2]."""

    def pair_that_turns(turns: float) -> Decimal:
        # The pair, as a real number, that makes `turns` turns within the original context.
        ratio = Decimal(original_context) / (Decimal(turns) * 2 * _PI)
        return dim * ratio.ln() / (2 * Decimal(base).ln())

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), dim - 1)
    width = max(Decimal(high - low), Decimal("0.001"))
    return [min(max((i - low) / width, Decimal(0)), Decimal(1)) for i in range(dim // 2)]
