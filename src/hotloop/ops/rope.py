"""Rotary frequencies and their scaling, computed without libm so that every machine gets the same bits."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RopeScaling = Literal["none", "linear", "ntk", "yarn"]

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
    truncate: bool = True,
    freq_factors: tuple[float, ...] | None = None,
) -> NDArray[np.float64]:
    """Angle per position of each rotated pair: float64 [dim / 2], radians, correctly rounded.

    dim: rotated elements per head, even. base: > 1. factor: how far the context is stretched, > 0; NTK multiplies
    the base by factor^(dim / (dim - 2)), so that the slowest pair is stretched by it and the fastest not at all.
    original_context: tokens, the length that YaRN stretches. beta_fast, beta_slow: turns within it beyond
    which YaRN leaves a pair alone, and below which it stretches it fully; truncate: whether the pairs that turn so
    often are rounded outwards to whole ones. freq_factors: [dim / 2], each pair's frequency is divided by it first.

    Source: RoFormer (arXiv 2104.09864); position interpolation (2306.15595); YaRN (2309.00071), section 3, also for
    NTK-aware interpolation.
    """
    assert dim > 0
    assert dim % 2 == 0
    assert base > 1
    assert factor > 0
    half = dim // 2
    with localcontext(_CONTEXT):
        log_base = Decimal(base).ln()
        if scaling == "ntk" and dim > 2:
            log_base += Decimal(factor).ln() * dim / (dim - 2)
        step = (log_base * -2 / dim).exp()
        frequencies = [Decimal(1)]
        while len(frequencies) < half:
            frequencies.append(frequencies[-1] * step)
        if freq_factors is not None:
            assert len(freq_factors) == half
            frequencies = [f / Decimal(x) for f, x in zip(frequencies, freq_factors, strict=True)]
        if scaling == "linear":
            frequencies = [f / Decimal(factor) for f in frequencies]
        elif scaling == "yarn":
            stretch = _yarn_ramp(dim, base, original_context, beta_fast, beta_slow, truncate)
            frequencies = [
                f / Decimal(factor) * s + f * (1 - s) for f, s in zip(frequencies, stretch, strict=True)
            ]
        return np.array([float(f) for f in frequencies], dtype=np.float64)


def yarn_attention_factor(factor: float, log_multiplier: float = 0.0) -> float:
    """What YaRN multiplies cos and sin by: 0.1 ln(factor) + 1, and 1 where nothing is stretched.

    log_multiplier: m > 0 divides that by 0.1 m ln(factor) + 1 (DeepSeek's mscale_all_dim, with an mscale of 1).
    """
    if factor <= 1.0:
        return 1.0
    with localcontext(_CONTEXT):
        log = Decimal(factor).ln() / 10
        return float((log + 1) / (log * Decimal(log_multiplier) + 1))


def dynamic_ntk_factor(factor: float, length: int, original_context: int) -> float:
    """The factor of "ntk" that dynamic NTK scaling prescribes for a length, in tokens; 1 up to original_context."""
    return max(factor * length / original_context - (factor - 1), 1.0)


def longrope_attention_factor(stretch: float, original_context: int) -> float:
    """What LongRoPE multiplies cos and sin by. stretch: context length / original_context, in tokens, > 1.

    Source: LongRoPE (arXiv 2402.13753), and Phi-3's configuration.
    """
    if stretch <= 1.0:
        return 1.0
    with localcontext(_CONTEXT):
        return float((1 + Decimal(stretch).ln() / Decimal(original_context).ln()).sqrt())


def llama3_factors(
    dim: int, base: float, *, factor: float, low: float, high: float, original_context: int
) -> tuple[float, ...]:
    """The divisors of Llama 3's scaling, rounded to float32 as a file's tensor rope_freqs.weight holds them: [dim / 2].

    factor: of pairs that turn less than `low` times within original_context (tokens); those that turn more than `high`
    times stay, the ones between are blended.
    """
    with localcontext(_CONTEXT):
        frequencies = [(Decimal(base).ln() * -2 * i / dim).exp() for i in range(dim // 2)]
        turns = [original_context * f / (2 * _PI) for f in frequencies]
        blends = [min(max((t - Decimal(low)) / Decimal(high - low), Decimal(0)), Decimal(1)) for t in turns]
        return tuple(float(np.float32(1 / ((1 - blend) / Decimal(factor) + blend))) for blend in blends)


def _yarn_ramp(
    dim: int, base: float, original_context: int, beta_fast: float, beta_slow: float, truncate: bool
) -> list[Decimal]:
    """How far each pair is stretched, from 0 (not at all) to 1 (fully): [dim / 2]."""

    def pair_that_turns(turns: float) -> Decimal:
        # The pair, as a real number, that makes `turns` turns within the original context.
        ratio = Decimal(original_context) / (Decimal(turns) * 2 * _PI)
        return dim * ratio.ln() / (2 * Decimal(base).ln())

    low, high = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        low, high = Decimal(math.floor(low)), Decimal(math.ceil(high))
    low, high = max(low, Decimal(0)), min(high, Decimal(dim - 1))
    width = max(high - low, Decimal("0.001"))
    return [min(max((i - low) / width, Decimal(0)), Decimal(1)) for i in range(dim // 2)]
