"""SamplerState: what drawing a request's next token needs to know of the request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hotloop import _native
from hotloop.sampling.edits import NO_IDS, Edits, TokenCounts
from hotloop.sampling_params import SamplingParams


class SamplerState:
    """A pure fold over a request's output ids: states that saw the same ids draw the same tokens.

    Speculation pushes tokens that may turn out wrong and rolls them back.
    """

    __slots__ = (
        "_barred", "_bias", "_bias_ids", "_counts", "_min_tokens", "_num_prompt_tokens", "_output_token_ids",
        "draw_params",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice: int = 0,
        prompt_token_ids: Sequence[int],
        output_token_ids: Iterable[int] = (),
        stop_token_ids: Collection[int] = (),
        vocab_size: int,
    ) -> None:
        """params: what is still open in it is off. output_token_ids: of a resumed request. stop_token_ids: barred before
        min_tokens. All ids lie in [0, vocab_size): admission has checked them.
        """
        params = params.with_defaults({})
        assert params.temperature is not None
        assert params.top_p is not None
        self.draw_params = _native.DrawParams(
            temperature=params.temperature,
            top_k=min(params.top_k or 0, vocab_size),
            top_p=params.top_p,
            min_p=params.min_p or 0.0,
            repetition_penalty=params.repetition_penalty or 1.0,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=seed % 2**64,
            choice=choice,
            num_logprobs=-1 if params.logprobs is None else min(params.logprobs, vocab_size),
        )
        self._min_tokens = params.min_tokens
        self._barred = np.array(sorted(stop_token_ids) if params.min_tokens else [], np.int32)
        bias = sorted((params.logit_bias or {}).items())
        self._bias_ids = np.array([token_id for token_id, _ in bias], np.int32)
        self._bias = np.array([value for _, value in bias], np.float32)
        self._counts: TokenCounts | None = None
        if self.draw_params.repetition_penalty != 1:
            self._counts = TokenCounts(prompt_token_ids)
        elif params.presence_penalty or params.frequency_penalty:
            self._counts = TokenCounts(())
        self._num_prompt_tokens = len(prompt_token_ids)
        self._output_token_ids: list[int] = []
        for token_id in output_token_ids:
            self.push(token_id)

    @property
    def num_output_tokens(self) -> int:
        return len(self._output_token_ids)

    @property
    def position(self) -> int:
        """The absolute position of the next token."""
        return self._num_prompt_tokens + len(self._output_token_ids)

    def push(self, token_id: int) -> None:
        """The request's output grows by this id."""
        self._output_token_ids.append(token_id)
        if self._counts is not None:
            self._counts.add(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` ids pushed."""
        assert 0 <= num_tokens <= len(self._output_token_ids)
        for _ in range(num_tokens):
            token_id = self._output_token_ids.pop()
            if self._counts is not None:
                self._counts.remove(token_id)

    @property
    def edits(self) -> Edits | None:
        """What happens to the next row of logits, None if nothing; views until the next push or rollback."""
        barred = self._barred if len(self._output_token_ids) < self._min_tokens else NO_IDS
        counts = self._counts
        if not (len(barred) or len(self._bias) or (counts is not None and len(counts.ids))):
            return None
        if counts is None:
            return Edits(barred, self._bias_ids, self._bias, NO_IDS, NO_IDS)
        return Edits(barred, self._bias_ids, self._bias, counts.ids, counts.counts)
