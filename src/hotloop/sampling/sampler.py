"""Single draws without a SamplerState, for callers that have not moved to sampling/draw.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hotloop import _native
from hotloop.sampling.definition import Floats, draw_row, token_logprobs
from hotloop.sampling.edits import NO_IDS, Edits

__all__ = ["RowParams", "sample", "token_logprobs"]


@dataclass(frozen=True, slots=True)
class RowParams:
    """What the sampler needs to know of a request: resolved, off is 0 (top_k, min_p) or 1 (top_p)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


def sample(
    isa: str, logits: Floats, params: RowParams, *, position: int, choice: int = 0, barred: Iterable[int] = ()
) -> int:
    """Draw the token at ``position`` (absolute) from logits float32 [vocab_size]. ``barred`` ids cannot be drawn.

    Raises: HotloopError if a logit is NaN or +inf, or nothing is left to draw.
    """
    barred_ids = np.fromiter(barred, np.int32)
    edits = Edits(barred_ids, NO_IDS, np.empty(0, np.float32), NO_IDS, NO_IDS) if len(barred_ids) else None
    drawn = _native.DrawParams(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p,
        seed=params.seed % 2**64, choice=choice,
    )  # fmt: skip
    return draw_row(isa, logits, drawn, edits, position)
