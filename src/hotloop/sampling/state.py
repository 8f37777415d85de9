"""SamplerState: what drawing a request's next token needs to know of the request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from hotloop import _native
from hotloop.request import Breaker
from hotloop.sampling.dry import Dry
from hotloop.sampling.edits import NO_FLOATS, NO_IDS, Edits, Ids, Mask, TokenCounts
from hotloop.sampling.processors import LogitsProcessors
from hotloop.sampling_params import SamplingParams


class SamplerState:
    """A pure fold over a request's output ids: states that saw the same ids draw the same tokens. Only mirostat's mu is no
    function of the ids; it travels with each of them.

    Speculation pushes tokens that may turn out wrong and rolls them back. The position is the first to grow and the last to
    shrink: should Ctrl-C come in between, it tells.
    """

    __slots__ = (
        "_allowed", "_bad_words", "_banned", "_barred", "_bias", "_bias_ids", "_counts", "_dry", "_min_tokens",
        "_num_prompt_tokens", "_output_token_ids", "draw_params", "mirostat_mu", "processors",
    )  # fmt: skip

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice: int = 0,
        prompt_token_ids: Sequence[int],
        output_token_ids: Iterable[int] = (),
        mirostat_mu: float | None = None,
        stop_token_ids: Collection[int] = (),
        bad_word_ids: Iterable[Sequence[int]] = (),
        dry_breakers: tuple[Breaker, ...] = (),
        vocab_size: int,
    ) -> None:
        """params: what is still open in it is off. output_token_ids, mirostat_mu: of a resumed request, mu for its next
        token. stop_token_ids: barred before min_tokens. bad_word_ids, dry_breakers: what bad_words and
        dry_sequence_breakers are in tokens (Request). All ids lie in [0, vocab_size): admission has checked them.
        """
        params = params.with_defaults({})
        assert params.temperature is not None
        assert params.top_p is not None
        self.draw_params = _native.DrawParams(
            temperature=params.temperature,
            top_n_sigma=params.top_n_sigma,
            min_p=params.min_p or 0.0,
            top_k=min(params.top_k or 0, vocab_size),
            top_p=params.top_p,
            typical_p=params.typical_p,
            xtc_probability=params.xtc_probability,
            xtc_threshold=params.xtc_threshold,
            mirostat=params.mirostat == 2,
            mirostat_tau=params.mirostat_tau,
            mirostat_eta=params.mirostat_eta,
            repetition_penalty=params.repetition_penalty or 1.0,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=seed % 2**64,
            choice=choice,
            num_logprobs=-1 if params.logprobs is None else min(params.logprobs, vocab_size),
            processed_logprobs=params.logprobs_mode == "processed",
        )
        self.mirostat_mu = 2 * params.mirostat_tau if mirostat_mu is None else mirostat_mu
        self._min_tokens = params.min_tokens
        self._barred = _sorted_ids(stop_token_ids if params.min_tokens else ())
        words = [tuple(word) for word in bad_word_ids]
        self._banned = _sorted_ids({word[0] for word in words if len(word) == 1})
        self._bad_words = [(list(word[:-1]), word[-1]) for word in words if len(word) > 1]
        self._allowed = None if params.allowed_token_ids is None else _mask_of(params.allowed_token_ids, vocab_size)
        bias = sorted((params.logit_bias or {}).items())
        self._bias_ids = np.array([token_id for token_id, _ in bias], np.int32)
        self._bias = np.array([value for _, value in bias], np.float32)
        self._counts: TokenCounts | None = None
        if self.draw_params.repetition_penalty != 1:
            self._counts = TokenCounts(prompt_token_ids)
        elif params.presence_penalty or params.frequency_penalty:
            self._counts = TokenCounts(())
        self._dry: Dry | None = None
        if params.dry_multiplier:
            self._dry = Dry(
                params.dry_multiplier, params.dry_base, params.dry_allowed_length, dry_breakers, prompt_token_ids
            )
        self.processors: LogitsProcessors | None = None
        if params.logits_processors:
            self.processors = LogitsProcessors(params.logits_processors, prompt_token_ids)
        self._num_prompt_tokens = len(prompt_token_ids)
        self._output_token_ids: list[int] = []
        for token_id in output_token_ids:
            self.push(token_id)

    @property
    def output_token_ids(self) -> Sequence[int]:
        """Live, to be read only."""
        return self._output_token_ids

    @property
    def position(self) -> int:
        """The absolute position of the next token."""
        return self._num_prompt_tokens + len(self._output_token_ids)

    def push(self, token_id: int, mirostat_mu: float | None = None) -> None:
        """The request's output grows by this id; mirostat_mu came with its draw."""
        self._output_token_ids.append(token_id)
        if self._counts is not None:
            self._counts.add(token_id)
        if self._dry is not None:
            self._dry.add(token_id)
        if mirostat_mu is not None:
            self.mirostat_mu = mirostat_mu

    def push_drafts(self, token_ids: Sequence[int]) -> None:
        """Until they are rolled back; views of ``edits`` from before are right again then."""
        if self._counts is not None:
            self._counts.reserve(len(token_ids))
        for token_id in token_ids:
            self.push(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` ids pushed, drafts all of them: they came without a mu."""
        assert 0 <= num_tokens <= len(self._output_token_ids)
        for _ in range(num_tokens):
            if self._counts is not None:
                self._counts.remove(self._output_token_ids[-1])
            if self._dry is not None:
                self._dry.remove()
            self._output_token_ids.pop()

    @property
    def edits(self) -> Edits | None:
        """What happens to the next row of logits, None if nothing; views until the next push."""
        barred = self._barred if len(self._output_token_ids) < self._min_tokens else NO_IDS
        banned = self._banned_here() if self._bad_words else self._banned
        seen_ids, counts = (NO_IDS, NO_IDS) if self._counts is None else (self._counts.ids, self._counts.counts)
        dry_ids, dry = (NO_IDS, NO_FLOATS) if self._dry is None else self._dry.penalties
        if self._allowed is None and not (
            len(barred) or len(banned) or len(self._bias) or len(seen_ids) or len(dry_ids)
        ):
            return None
        return Edits(
            banned, barred, self._bias_ids, self._bias, seen_ids, counts, dry_ids, dry, self._allowed
        )

    def _banned_here(self) -> Ids:
        """The last ids of bad words, where the output ends with the ids before them."""
        output = self._output_token_ids
        last_ids = {last for start, last in self._bad_words if output[-len(start) :] == start}
        return _sorted_ids(last_ids.union(self._banned.tolist())) if last_ids else self._banned


def _sorted_ids(ids: Collection[int]) -> Ids:
    return np.array(sorted(ids), np.int32)


def _mask_of(ids: Iterable[int], vocab_size: int) -> Mask:
    bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
