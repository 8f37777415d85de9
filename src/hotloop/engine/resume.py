"""Resume: all that it takes to go on with a request after its engine is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.request import Request, Thinking
from hotloop.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Resume:
    """One choice of a request so far. The rest of its output is what it would have been: tokens, logprobs and finish reason.

    params: resolved, those of ``Request``. output_ids: what was drawn; they are prefilled but stay output (penalties,
    limits, usage). The sampler's state is a fold over them, so it is made again and not stored; only mirostat's mu, which is
    not, comes along.
    """

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    params: SamplingParams
    seed: int
    choice: int = 0
    mirostat_mu: float | None = None
    thinking: Thinking | None = None

    @classmethod
    def of(cls, request: Request) -> Resume:
        """A copy of where a request is."""
        return cls(
            tuple(request.prompt_token_ids), tuple(request.output_token_ids), request.params, request.seed,
            request.choice, request.mirostat_mu, request.thinking,
        )  # fmt: skip
