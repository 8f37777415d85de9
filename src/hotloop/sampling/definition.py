"""What sampling is, in numpy: the definition that the native sampler equals to the bit (docs/sampling.md).

One row of logits becomes one token id, a pure function of (logits, parameters, edits, position, mirostat's mu).

Order: logits -> mask -> bad words, and stop ids before min_tokens -> logit_bias -> repetition, frequency and presence
penalties -> dry -> greedy if temperature is 0 -> temperature -> top_n_sigma -> min_p -> top_k -> top_p -> typical_p -> xtc ->
draw. mirostat takes the place of the filters. The draw is argmax(logit / temperature + g) over what is left, g
counter-based Gumbel noise; ties go to the lowest id.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hotloop import _native
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import TokenLogprobs
from hotloop.sampling.edits import NO_IDS, Edits
from hotloop.sampling.filters import (
    FIXED_POINT_BITS,
    Floats,
    Ids,
    Weights,
    exclude_top_choices,
    fixed_point_probs,
    keep_min_p,
    keep_mirostat,
    keep_top_k,
    keep_top_n_sigma,
    keep_top_p,
    keep_typical_p,
    next_mirostat_mu,
    normal_float32,
    scale_logits,
    xtc_applies,
)

_DRAW_STREAM = 0


class Draw(NamedTuple):
    """A drawn token, with logprobs where the request wants them. mirostat_mu: of the next token, where there is mirostat.
    A tuple, since every token makes one."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    mirostat_mu: float | None = None


def draw_row(
    isa: str, logits: Floats, params: _native.DrawParams, edits: Edits | None, position: int, mirostat_mu: float = 0.0
) -> Draw:
    """Draw the token at ``position`` (absolute) from logits float32 [vocab_size].

    Raises: HotloopError if a logit is NaN or +inf, all are -inf, or the edits leave nothing to draw.
    """
    raw, top = logits, int(np.argmax(logits))  # the first NaN, if there is one
    if not np.isfinite(logits[top]):
        raise broken_logits(position, top, float(logits[top]))
    if edits is not None:
        logits = edited(raw, params, edits)
        if logits.max() == -np.inf and edits.mask is not None:
            logits = edited(raw, params, edits._replace(barred=NO_IDS))
        if logits.max() == -np.inf:
            raise nothing_left(position, edits)
    next_mu = mirostat_mu
    scaled = scale_logits(logits, params.temperature or 1.0)
    if params.temperature == 0:
        ids, weights = np.arange(len(scaled)), fixed_point_probs(isa, scaled)
        token_id = int(np.argmax(logits))
    else:
        ids, weights = kept(isa, logits, scaled, params, position, mirostat_mu)
        token_id = draw(isa, scaled, ids, params.seed, position, params.choice)
        if params.mirostat:
            weight = int(weights[ids == token_id][0])
            next_mu = next_mirostat_mu(isa, params, mirostat_mu, weight, weights)
    logprobs = None
    if params.num_logprobs >= 0 and params.processed_logprobs:
        logprobs = processed_logprobs(isa, scaled, ids, weights, token_id, params.num_logprobs)
    elif params.num_logprobs >= 0:
        logprobs = raw_logprobs(isa, raw, token_id, params.num_logprobs)
    return Draw(token_id, logprobs, next_mu if params.mirostat else None)


def broken_logits(position: int, token_id: int, logit: float) -> HotloopError:
    return HotloopError(
        f"the model's logits at position {position} have no finite maximum (token {token_id}: {logit}): its file is damaged, "
        f"which `hotloop check` tells, or its keys or values are too large for the KV cache, and kv_dtype f32 holds them"
    )


def nothing_left(position: int, edits: Edits) -> InvalidRequestError:
    if edits.mask is not None:
        why = "no token that is allowed here has a finite logit"
        if len(edits.banned):
            why += " and is no bad word"
    elif len(edits.barred):
        why = (
            f"before min_tokens no stop token is drawn, and the {len(edits.barred)} stop tokens are all there is; "
            f"lower min_tokens"
        )
    else:
        why = "bad_words and the penalties rule out every token"
    return InvalidRequestError(f"nothing is left to draw at position {position}: {why}")


def edited(logits: Floats, params: _native.DrawParams, edits: Edits) -> Floats:
    """logits float32 [vocab_size] after the edits, a copy; never NaN or +inf where logits is neither."""
    logits = logits.copy()
    if edits.mask is not None:
        allowed = np.unpackbits(edits.mask.astype("<u4").view(np.uint8), bitorder="little")
        logits[allowed[: len(logits)] == 0] = -np.inf
    logits[edits.banned] = -np.inf
    logits[edits.barred] = -np.inf
    logits[edits.bias_ids] += edits.bias
    seen = logits[edits.seen_ids]
    penalty = normal_float32(params.repetition_penalty)
    with np.errstate(over="ignore"):
        seen = np.where(seen > 0, seen / penalty, seen * penalty)
        present = edits.counts > 0
        subtracted = edits.counts * params.frequency_penalty + params.presence_penalty  # float64, rounded once
        seen[present] -= subtracted[present].astype(np.float32)
        logits[edits.seen_ids] = np.minimum(seen, np.finfo(np.float32).max)
        logits[edits.dry_ids] -= edits.dry
    return logits


def kept(
    isa: str, logits: Floats, scaled: Floats, params: _native.DrawParams, position: int, mirostat_mu: float = 0.0
) -> tuple[Ids, Weights]:
    """What the filters leave of edited logits: ids, ascending, and their weights."""
    weights = fixed_point_probs(isa, scaled)
    if params.mirostat:
        return keep_mirostat(isa, scaled, weights, mirostat_mu)
    ids = np.arange(len(scaled))
    ids, weights = keep_top_n_sigma(isa, logits, scaled, ids, weights, params.temperature, params.top_n_sigma)
    ids, weights = keep_min_p(ids, weights, params.min_p)
    ids, weights = keep_top_k(scaled, ids, weights, params.top_k)
    ids, weights = keep_top_p(scaled, ids, weights, params.top_p)
    ids, weights = keep_typical_p(scaled, ids, weights, params.typical_p)
    if xtc_applies(isa, params, position):
        ids, weights = exclude_top_choices(scaled, ids, weights, params.xtc_threshold)
    return ids, weights


def draw(isa: str, scaled: Floats, ids: Ids, seed: int, position: int, choice: int) -> int:
    """argmax over ``ids`` (ascending) of scaled + Gumbel noise of (seed, position, choice, token id); ties to the lowest id."""
    if len(ids) == 1:
        return int(ids[0])
    noise = _native.gumbel(isa, seed, position, choice, _DRAW_STREAM, 0, len(scaled))
    return int(ids[np.argmax(scaled[ids] + noise[ids])])


def raw_logprobs(isa: str, logits: Floats, token_id: int, num_top: int) -> TokenLogprobs:
    """Logprobs (log-softmax of the logits before any processing) of ``token_id`` and the ``num_top`` largest."""
    top_logit, log_sum = _native.log_sum_exp(isa, logits)
    logprobs = (logits - np.float32(top_logit)) - np.float32(log_sum)
    return _entry(logits, np.arange(len(logits)), logprobs, token_id, num_top)


def processed_logprobs(
    isa: str, scaled: Floats, ids: Ids, weights: Weights, token_id: int, num_top: int
) -> TokenLogprobs:
    """Logprobs of what is drawn from, ``ids``, among themselves; those without a finite one are left out."""
    finite = np.isfinite(scaled[ids])
    total = np.float32(float(int(weights.sum())) / 2.0**FIXED_POINT_BITS)
    logprobs = scaled[ids] - _native.log(isa, np.array([total], np.float32))[0]
    return _entry(scaled[ids][finite], ids[finite], logprobs[finite], token_id, num_top)


def _entry(logits: Floats, ids: Ids, logprobs: Floats, token_id: int, num_top: int) -> TokenLogprobs:
    """ids: ascending, of which logits and logprobs are."""
    order = np.argsort(-logits, kind="stable")
    rank = int(np.flatnonzero(ids[order] == token_id)[0])
    top = tuple((int(ids[i]), float(logprobs[i])) for i in order[:num_top])
    return TokenLogprobs(token_id, float(logprobs[order[rank]]), rank + 1, top)
