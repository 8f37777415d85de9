"""What sampling is, in numpy: the definition that the native sampler equals to the bit (docs/sampling.md).

One row of logits becomes one token id, a pure function of (logits, parameters, edits, position).

Order: logits -> mask of structured output -> stop ids barred before min_tokens -> logit_bias -> penalties -> greedy if
temperature is 0 -> temperature -> min_p -> top_k -> top_p -> draw. The draw is argmax(logit / temperature + g) over what
is left, g counter-based Gumbel noise; ties go to the lowest id. Probabilities are compared and summed as integers (units
of 2^-40 of the top probability), so no sum depends on its order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.errors import HotloopError
from hotloop.request import TokenLogprobs
from hotloop.sampling.edits import NO_IDS, Edits

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_FIXED_POINT_BITS = 40
_DRAW_STREAM = 0


def draw_row(isa: str, logits: Floats, params: _native.DrawParams, edits: Edits | None, position: int) -> int:
    """Draw the token at ``position`` (absolute) from logits float32 [vocab_size].

    Raises: HotloopError if a logit is NaN or +inf, all are -inf, or the edits leave nothing to draw.
    """
    top = int(np.argmax(logits))  # the first NaN, if there is one
    if not np.isfinite(logits[top]):
        raise broken_logits(position, top, float(logits[top]))
    if edits is not None:
        raw, logits = logits, edited(logits, params, edits)
        if logits.max() == -np.inf and edits.mask is not None:
            logits = edited(raw, params, replace(edits, barred=NO_IDS))
        top = int(np.argmax(logits))
        if logits[top] == -np.inf:
            raise nothing_left(position, edits)
    if params.temperature == 0:
        return top
    scaled = scale_logits(logits, params.temperature)
    ids, weights = keep_min_p(scaled, fixed_point_probs(isa, scaled), params.min_p)
    ids, weights = keep_top_k(scaled, ids, weights, params.top_k)
    ids = keep_top_p(scaled, ids, weights, params.top_p)
    return draw(isa, scaled, ids, params.seed, position, params.choice)


def broken_logits(position: int, token_id: int, logit: float) -> HotloopError:
    return HotloopError(f"the model's logits at position {position} have no finite maximum (token {token_id}: {logit})")


def nothing_left(position: int, edits: Edits) -> HotloopError:
    if edits.mask is not None:
        why = "no token that is allowed here has a finite logit"
    else:
        why = (
            f"before min_tokens no stop token is drawn, and the {len(edits.barred)} stop tokens are all there is; "
            f"lower min_tokens"
        )
    return HotloopError(f"nothing is left to draw at position {position}: {why}")


def edited(logits: Floats, params: _native.DrawParams, edits: Edits) -> Floats:
    """logits float32 [vocab_size] after the edits, a copy; never NaN or +inf where logits is neither."""
    logits = logits.copy()
    if edits.mask is not None:
        allowed = np.unpackbits(edits.mask.astype("<u4").view(np.uint8), bitorder="little")
        logits[allowed[: len(logits)] == 0] = -np.inf
    logits[edits.barred] = -np.inf
    logits[edits.bias_ids] += edits.bias
    seen = logits[edits.seen_ids]
    penalty = _normal_float32(params.repetition_penalty)
    with np.errstate(over="ignore"):
        seen = np.where(seen > 0, seen / penalty, seen * penalty)
    present = edits.counts > 0
    subtracted = edits.counts * params.frequency_penalty + params.presence_penalty  # float64, rounded once
    seen[present] -= subtracted[present].astype(np.float32)
    logits[edits.seen_ids] = seen
    return np.minimum(logits, np.finfo(np.float32).max)


def scale_logits(logits: Floats, temperature: float) -> Floats:
    """(logits - max) / temperature: float32 [vocab_size], the top one is 0, tiny temperatures give -inf, never NaN."""
    with np.errstate(over="ignore"):
        return np.asarray((logits - logits.max()) / _normal_float32(temperature), np.float32)


def _normal_float32(x: float) -> np.float32:
    """The nearest positive, finite, normal float32."""
    limits = np.finfo(np.float32)
    return np.float32(min(max(x, float(limits.tiny)), float(limits.max)))


def fixed_point_probs(isa: str, scaled: Floats) -> NDArray[np.uint64]:
    """exp(scaled) in units of 2^-40, rounded down: uint64 [vocab_size]. The top token has 2^40."""
    return np.asarray(np.ldexp(_native.exp(isa, scaled).astype(np.float64), _FIXED_POINT_BITS), np.uint64)


def keep_min_p(scaled: Floats, weights: NDArray[np.uint64], min_p: float) -> tuple[Ids, NDArray[np.uint64]]:
    """Ids (ascending) whose probability is at least min_p times the top one's, and their weights. Below 2^-40 it is off."""
    floor = int(min_p * 2**_FIXED_POINT_BITS)
    ids = np.flatnonzero(weights >= np.uint64(floor))
    return ids, weights[ids]


def keep_top_k(scaled: Floats, ids: Ids, weights: NDArray[np.uint64], top_k: int) -> tuple[Ids, NDArray[np.uint64]]:
    """The top_k largest logits among ``ids``; of equal ones at the edge the lowest ids. Off: 0, -1."""
    if top_k <= 0 or top_k >= len(ids):
        return ids, weights
    values = scaled[ids]
    edge = np.partition(values, len(values) - top_k)[len(values) - top_k]
    above = values > edge
    at_edge = np.flatnonzero(values == edge)[: top_k - int(above.sum())]
    above[at_edge] = True
    return ids[above], weights[above]


def keep_top_p(scaled: Floats, ids: Ids, weights: NDArray[np.uint64], top_p: float) -> Ids:
    """The smallest set of most probable ids whose mass reaches top_p of the mass of ``ids``; at least one."""
    total = int(weights.sum())
    target = max(1, -int(-top_p * total // 1))
    if top_p >= 1 or target >= total:
        return ids
    order = np.lexsort((ids, -scaled[ids]))
    mass = np.cumsum(weights[order], dtype=np.uint64)
    return ids[order[: int(np.searchsorted(mass, np.uint64(target))) + 1]]


def draw(isa: str, scaled: Floats, ids: Ids, seed: int, position: int, choice: int) -> int:
    """argmax over ``ids`` of scaled + Gumbel noise of (seed, position, choice, token id); ties to the lowest id."""
    if len(ids) == 1:
        return int(ids[0])
    ids = np.sort(ids)
    noise = _native.gumbel(isa, seed, position, choice, _DRAW_STREAM, 0, len(scaled))
    return int(ids[np.argmax(scaled[ids] + noise[ids])])


def token_logprobs(isa: str, logits: Floats, token_id: int, num_top: int) -> TokenLogprobs:
    """Raw logprobs (log-softmax of the logits before any processing) of ``token_id`` and the ``num_top`` largest."""
    top_logit, log_sum = _native.log_sum_exp(isa, logits)
    logprobs = (logits - np.float32(top_logit)) - np.float32(log_sum)
    count = min(num_top, len(logits))
    top: Ids = np.empty(0, np.int64)
    if count:
        largest = np.argpartition(-logits, count - 1)[:count]
        edge = logits[largest].min()
        largest = np.flatnonzero(logits >= edge)  # ties at the edge: the lowest ids win below
        top = largest[np.lexsort((largest, -logits[largest]))][:count]
    own = logits[token_id]
    rank = int((logits > own).sum() + (logits[:token_id] == own).sum()) + 1
    return TokenLogprobs(token_id, float(logprobs[token_id]), rank, tuple((int(i), float(logprobs[i])) for i in top))
