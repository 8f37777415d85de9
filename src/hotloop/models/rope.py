"""Rotary embedding as a model file states it, by keys or by tensors: read once, applied once.

Whatever a scaling makes depend on a length is decided by the file's context_length, never by the length of a sequence or
the limits of an engine (docs/decisions/rope-of-the-whole-context.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hotloop.errors import ModelFileError
from hotloop.models.metadata import ArchMetadata
from hotloop.ops.protocol import Rope, RopeStyle
from hotloop.ops.rope import (
    RopeScaling,
    dynamic_ntk_factor,
    llama3_factors,
    longrope_attention_factor,
    rope_frequencies,
    yarn_attention_factor,
)

_DIVISORS = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
# What a file may say; the last three come down to a base and to divisors.
_STATED = ("none", "linear", "yarn", "dynamic", "llama3", "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding with all choices made; `rope` turns it into frequencies.

    dim: rotated elements of a head, even; the rest pass unchanged. original_context: tokens.
    attention_factor: on top of what YaRN itself prescribes. freq_factors: one divisor per pair.
    factor, truncate, betas: of `rope_frequencies`. log_multiplier: of `yarn_attention_factor`.
    tensors: names of the file's rope tensors, float32 [dim / 2] each.
    """

    style: RopeStyle
    dim: int
    base: float
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    log_multiplier: float = 0.0
    freq_factors: tuple[float, ...] | None = None
    tensors: tuple[str, ...] = ()

    def rope(self) -> Rope:
        """The frequencies with all scaling applied."""
        yarn = yarn_attention_factor(self.factor, self.log_multiplier) if self.scaling == "yarn" else 1.0
        frequencies = rope_frequencies(
            self.dim,
            self.base,
            scaling=self.scaling,
            factor=self.factor,
            original_context=self.original_context,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            truncate=self.truncate,
            freq_factors=self.freq_factors,
        )
        return Rope(frequencies, self.style, self.attention_factor * yarn)


def read_rope(
    meta: ArchMetadata, style: RopeStyle, head_dim: int, context_length: int, *, tensors: bool = True
) -> RopeConfig:
    """The rope of a file. tensors: whether the architecture knows rope tensors; else one is an unknown tensor.

    Raises: ModelFileError naming the key or tensor that is malformed, not implemented, or contradicts another.
    """
    dim = meta.size("rope.dimension_count", head_dim)
    if dim > head_dim or dim % 2:
        raise meta.error("rope.dimension_count", f"must be even and at most the head_dim {head_dim}, but is {dim}")
    base = meta.number("rope.freq_base", 10000.0)
    if base <= 1:
        raise meta.error("rope.freq_base", f"must be greater than 1, but is {base}")
    original = meta.size("rope.scaling.original_context_length", context_length)
    present = tuple(name for name in (_DIVISORS, _LONG, _SHORT) if tensors and name in meta.file.tensors)
    scaling, factor = _read_scaling(meta, present)
    rope = RopeConfig(
        style=style,
        dim=dim,
        base=base,
        original_context=original,
        attention_factor=meta.number("rope.scaling.attn_factor", 1.0),
        beta_fast=meta.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=meta.number("rope.scaling.yarn_beta_slow", 1.0),
        truncate=meta.flag("rope.scaling.yarn_truncate", True),
        log_multiplier=meta.number("rope.scaling.yarn_log_multiplier", 0.0, positive=False),
    )
    if _DIVISORS in present:
        rope = replace(rope, freq_factors=_read_factors(meta, _DIVISORS, dim), tensors=(_DIVISORS,))
    match scaling:
        case "linear" | "yarn":
            return replace(rope, scaling=scaling, factor=factor)
        case "dynamic":
            alpha = meta.number("rope.scaling.alpha", 0.0, positive=False)
            return replace(rope, scaling="ntk", factor=alpha or dynamic_ntk_factor(factor, context_length, original))
        case "llama3":
            computed = _compute_llama3_factors(meta, dim, base)
            if rope.freq_factors is None:
                return replace(rope, freq_factors=computed)
            if not np.allclose(rope.freq_factors, computed, rtol=1e-3, atol=0):
                raise meta.error("rope.scaling.type", f"is llama3, but {_DIVISORS} holds other divisors than its keys say")
            return rope
        case "longrope":
            return _read_longrope(meta, rope, context_length)
        case _:
            return rope


def _read_scaling(meta: ArchMetadata, tensors: tuple[str, ...]) -> tuple[str, float]:
    """The scaling that keys and tensors agree on, one of _STATED, and its factor."""
    # A file with a factor and no type is from before there were types: linear was all there was.
    legacy_factor = meta.number("rope.scale_linear", 1.0)
    factor = meta.number("rope.scaling.factor", legacy_factor)
    longrope = _LONG in tensors or _SHORT in tensors
    alpha = meta.number("rope.scaling.alpha", 0.0, positive=False)
    if 0 < alpha < 1:
        raise meta.error("rope.scaling.alpha", f"must be at least 1, but is {alpha}")
    implied = "longrope" if longrope else "dynamic" if alpha else "none"
    if implied == "none" and factor != 1.0 and not meta.has("rope.scaling.type"):
        implied = "linear"
    scaling = meta.text("rope.scaling.type", implied)
    if scaling not in _STATED:
        raise meta.error("rope.scaling.type", f"is {scaling!r:.40}; hotloop implements {', '.join(_STATED)}")
    if scaling == "none":
        scaling = implied
    if implied not in ("none", scaling):
        other = "rope factors of longrope" if longrope else "rope.scaling.alpha"
        raise meta.error("rope.scaling.type", f"is {scaling}, but the file has {other} as well; only one can be applied")
    if longrope and _DIVISORS in tensors:
        raise ModelFileError(f"{meta.file.path}: has {_DIVISORS} and {_LONG}; only one can be applied")
    return scaling, factor


def _read_longrope(meta: ArchMetadata, rope: RopeConfig, context_length: int) -> RopeConfig:
    """The divisors of the whole context. The factor is no further scaling: it says how far they stretch."""
    original = meta.size("rope.scaling.original_context_length", least=2)
    stretch = meta.number("rope.scaling.factor", context_length / original)
    default = longrope_attention_factor(stretch, original)
    return replace(
        rope,
        freq_factors=_read_factors(meta, _LONG if context_length > original else _SHORT, rope.dim),
        attention_factor=meta.number("rope.scaling.attn_factor", default),
        tensors=(_LONG, _SHORT),
    )


def _read_factors(meta: ArchMetadata, name: str, dim: int) -> tuple[float, ...]:
    """A rope tensor: one divisor per pair."""
    tensor = meta.file.tensors.get(name)
    if tensor is None:
        raise ModelFileError(f"{meta.file.path}: tensor {name} is missing; longrope needs it")
    if tensor.format != "F32" or tensor.shape != (dim // 2,):
        raise ModelFileError(
            f"{meta.file.path}: tensor {name} must be F32 [{dim // 2}], but is {tensor.format} {list(tensor.shape)}"
        )
    factors = meta.file.read(name).view("<f4")
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ModelFileError(f"{meta.file.path}: tensor {name} must hold finite numbers greater than 0")
    return tuple(factors.tolist())


def _compute_llama3_factors(meta: ArchMetadata, dim: int, base: float) -> tuple[float, ...]:
    """What the tensor rope_freqs.weight would hold, for files that state Llama 3's scaling by keys alone."""
    low = meta.number("rope.scaling.low_freq_factor", 1.0)
    high = meta.number("rope.scaling.high_freq_factor", 4.0)
    if low >= high:
        raise meta.error("rope.scaling.high_freq_factor", f"is {high}, but must be greater than low_freq_factor {low}")
    factor = meta.number("rope.scaling.factor")
    original = meta.size("rope.scaling.original_context_length")
    return llama3_factors(dim, base, factor=factor, low=low, high=high, original_context=original)
