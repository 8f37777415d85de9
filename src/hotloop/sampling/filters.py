"""The filters of docs/sampling.md in numpy: which ids of a row stay in the game, and what mirostat makes of it.

scaled: float32 [vocab_size], (logits - max) / temperature. ids: int64, ascending, what is left so far; weights: uint64, its
probabilities in units of 2^-40 of the top one. Probabilities are compared and summed as such integers, so no sum depends
on its order. Of equal logits the lower id comes first.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hotloop import _native

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Weights = NDArray[np.uint64]

FIXED_POINT_BITS = 40
_XTC_STREAM = 1
_LN2 = 0.6931471805599453
_LARGEST = float(np.finfo(np.float32).max)


def scale_logits(logits: Floats, temperature: float) -> Floats:
    """(logits - max) / temperature: float32 [vocab_size], the top one is 0, tiny temperatures give -inf, never NaN."""
    with np.errstate(over="ignore"):
        return np.asarray((logits - logits.max()) / normal_float32(temperature), np.float32)


def normal_float32(x: float) -> np.float32:
    """The nearest positive, finite, normal float32."""
    limits = np.finfo(np.float32)
    return np.float32(min(max(x, float(limits.tiny)), float(limits.max)))


def fixed_point_probs(isa: str, scaled: Floats) -> Weights:
    """exp(scaled) in units of 2^-40, rounded down: uint64 [vocab_size]. The top token has 2^40."""
    return np.asarray(np.ldexp(_native.exp(isa, scaled).astype(np.float64), FIXED_POINT_BITS), np.uint64)


def keep_top_n_sigma(
    isa: str, logits: Floats, scaled: Floats, ids: Ids, weights: Weights, temperature: float, top_n_sigma: float
) -> tuple[Ids, Weights]:
    """Ids whose logit is at most so many standard deviations (of the finite logits) below the top one. Off: 0."""
    if top_n_sigma <= 0:
        return ids, weights
    sigma = float(np.sqrt(np.float32(_native.variance(isa, logits, float(logits.max())))))
    with np.errstate(over="ignore"):
        least = -np.float32(min(top_n_sigma * sigma, _LARGEST)) / normal_float32(temperature)
    stays = scaled[ids] >= least
    return ids[stays], weights[stays]


def keep_min_p(ids: Ids, weights: Weights, min_p: float) -> tuple[Ids, Weights]:
    """Ids whose probability is at least min_p times the top one's. Below 2^-40 it is off."""
    stays = weights >= np.uint64(int(min_p * 2**FIXED_POINT_BITS))
    return ids[stays], weights[stays]


def keep_top_k(scaled: Floats, ids: Ids, weights: Weights, top_k: int) -> tuple[Ids, Weights]:
    """The top_k largest logits. Off: 0, -1."""
    if top_k <= 0 or top_k >= len(ids):
        return ids, weights
    stays = np.sort(_order(scaled[ids], ids)[:top_k])
    return ids[stays], weights[stays]


def keep_top_p(scaled: Floats, ids: Ids, weights: Weights, top_p: float) -> tuple[Ids, Weights]:
    """The smallest set of most probable ids whose mass reaches top_p of the mass that is left; at least one. Off: 1."""
    return _keep_mass(_order(scaled[ids], ids), ids, weights, top_p)


def keep_typical_p(scaled: Floats, ids: Ids, weights: Weights, typical_p: float) -> tuple[Ids, Weights]:
    """The smallest set, of ids whose surprise is nearest to the entropy first, whose mass reaches typical_p of the mass
    that is left; at least one. Ids without mass go. Off: 1.

    |-log p - entropy| is the distance of a scaled logit from the mean scaled logit under p.
    Source: Meister, Pimentel, Wiher, Cotterell, "Locally typical sampling" (TACL 2023).
    """
    if typical_p >= 1:
        return ids, weights
    ids, weights = ids[weights > 0], weights[weights > 0]
    return _keep_mass(_order(-np.abs(scaled[ids] - mean_scaled(scaled[ids], weights)), ids), ids, weights, typical_p)


def mean_scaled(values: Floats, weights: Weights) -> np.float32:
    """The mean of values, in units of 2^-20, weighed; sums of integers, the weights in two halves of 20 bits."""
    distances = (values * np.float32(-(2.0**20))).astype(np.uint64)
    high, low = (int((half * distances).sum()) for half in (weights >> np.uint64(20), weights & np.uint64(0xFFFFF)))
    return np.float32(-(float(high) * 2.0**20 + float(low)) / float(int(weights.sum())) * 2.0**-20)


def exclude_top_choices(scaled: Floats, ids: Ids, weights: Weights, threshold: float) -> tuple[Ids, Weights]:
    """Of the ids whose share of the mass that is left is at least ``threshold`` only the last in order stays (XTC)."""
    likely = np.flatnonzero(weights >= np.uint64(_share_of(threshold, weights)))
    if len(likely) < 2:
        return ids, weights
    last = likely[_order(scaled[ids[likely]], ids[likely])[-1]]
    excluded = likely[likely != last]
    return np.delete(ids, excluded), np.delete(weights, excluded)


def xtc_applies(isa: str, params: _native.DrawParams, position: int) -> bool:
    """Whether the top choices are excluded here: drawn with xtc_probability, as tokens are, in a stream of noise of its own."""
    probability = np.float32(params.xtc_probability)
    if probability <= 0 or probability >= 1:
        return bool(probability > 0)
    noise = _native.gumbel(isa, params.seed, position, params.choice, _XTC_STREAM, 0, 2)
    excludes, keeps = _native.log(isa, np.array([probability, 1 - probability], np.float32)) + noise
    return bool(excludes > keeps)


def keep_mirostat(isa: str, scaled: Floats, weights: Weights, mu: float) -> tuple[Ids, Weights]:
    """Ids whose surprise, -log2 of their share of the whole mass, is at most mu; at least the top one.

    Source: Basu et al., "Mirostat: a neural text decoding algorithm that directly controls perplexity" (ICLR 2021), with
    the cut of version 2.
    """
    least = float(_native.exp(isa, np.array([min(mu * -_LN2, 0.0)], np.float32))[0])
    ids = np.flatnonzero(weights >= np.uint64(_share_of(least, weights)))
    if not len(ids):
        ids = np.array([np.argmax(scaled)])
    return ids, weights[ids]


def next_mirostat_mu(isa: str, params: _native.DrawParams, mu: float, weight: int, weights: Weights) -> float:
    """Where mu goes after a token of ``weight`` was drawn among ``weights``."""
    probability = np.float32(float(weight) / float(int(weights.sum())))
    surprise = -float(_native.log(isa, np.array([probability], np.float32))[0]) / _LN2
    return float(mu - params.mirostat_eta * (surprise - params.mirostat_tau))


def _order(values: Floats, ids: Ids) -> Ids:
    return np.lexsort((ids, -values))


def _share_of(fraction: float, weights: Weights) -> int:
    return max(1, math.ceil(fraction * float(int(weights.sum()))))


def _keep_mass(order: Ids, ids: Ids, weights: Weights, fraction: float) -> tuple[Ids, Weights]:
    """The shortest prefix of ``order`` whose mass reaches ``fraction`` of all of it."""
    target = _share_of(fraction, weights)
    if fraction >= 1 or target >= int(weights.sum()):
        return ids, weights
    mass = np.cumsum(weights[order], dtype=np.uint64)
    stays = np.sort(order[: int(np.searchsorted(mass, np.uint64(target))) + 1])
    return ids[stays], weights[stays]
