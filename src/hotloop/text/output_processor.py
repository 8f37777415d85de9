"""What a client sees of a request's output ids: the only place for detokenization and stop strings.

Text and token ids are cut at one place. Text is held back only while it may still become a stop string; ids
are held back with their text, so that a stop found later takes both away together.
"""

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from hotloop.text.detokenizer import Detokenizer, TokenTexts
from hotloop.text.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What became certain with one push: append it to what came before."""

    text: str
    token_ids: tuple[int, ...]  # the output ids that belong to the text so far and were not reported before
    finish_reason: str | None = None  # "stop" where a stop string was found, or the reason given to `finish`
    stop: str | None = None  # the stop string that was found


def output_detokenizer(
    tokenizer: TokenTexts,
    prompt_ids: Sequence[int],
    *,
    skip_special_tokens: bool = True,
    visible_ids: Container[int] = (),
) -> Detokenizer:
    """For the output after a prompt, which decides whether it starts the text or continues it."""
    starts_text = all(tokenizer.is_special(token_id) for token_id in prompt_ids)
    return Detokenizer(
        tokenizer,
        skip_special_tokens=skip_special_tokens,
        visible_ids=visible_ids,
        strip_leading_space=starts_text and bool(getattr(tokenizer, "adds_leading_space", False)),
    )


class OutputProcessor:
    """Turns the output ids of one choice into text deltas, whatever sizes the ids arrive in."""

    def __init__(
        self,
        tokenizer: TokenTexts,
        *,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        visible_ids: Container[int] = (),
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """min_tokens: a stop string counts only if it ends in the min_tokens-th token or later.

        visible_ids: control tokens that have a text all the same.
        prompt_ids: the prompt, see `output_detokenizer`.
        """
        self._detokenizer = output_detokenizer(
            tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens, visible_ids=visible_ids
        )
        self._matcher = StopMatcher(stop)
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self._num_pushed = 0
        self._held_text = ""
        self._text_end = 0  # characters of text so far, the held ones included
        self._held_ids: deque[tuple[int, int]] = deque()  # (token id, end of its text)
        self._ids_end = 0  # end of the text of the last reported id
        self._stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; later tokens are ignored."""
        return self._stop is not None

    def shown_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text."""
        return self._detokenizer.shown_bytes(token_id)

    def push(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> TextDelta:
        """Take the next output ids.

        ends_with_stop_token: the last id ended the answer. If it has a text, neither text nor id are part
        of the output, unless the request includes the stop string.
        """
        drop_text = ends_with_stop_token and not self._include_stop_str
        hidden = bool(drop_text and token_ids and self.shown_bytes(token_ids[-1]))
        text: list[str] = []
        ids: list[int] = []
        for token_id in token_ids[:-1] if hidden else token_ids:
            if self.stopped:
                break
            self._num_pushed += 1
            piece = self._detokenizer.push(token_id)
            self._held_ids.append((token_id, self._text_end + len(piece)))
            certain_text, certain_ids = self._take(piece)
            text.append(certain_text)
            ids += certain_ids
        return self._delta("".join(text), ids, None)

    def finish(self, reason: str) -> TextDelta:
        """The end of the output: everything held back, and `reason` unless a stop string came first."""
        text = ""
        ids: list[int] = []
        if not self.stopped:
            text, ids = self._take(self._detokenizer.flush())
        if not self.stopped:
            text += self._held_text
            ids += [token_id for token_id, _ in self._held_ids]
            self._held_text = ""
            self._held_ids.clear()
        return self._delta(text, ids, reason)

    def _delta(self, text: str, ids: list[int], reason: str | None) -> TextDelta:
        return TextDelta(text, tuple(ids), "stop" if self.stopped else reason, self._stop)

    def _take(self, piece: str) -> tuple[str, list[int]]:
        """Add the text of the last pushed token; return the text and ids that are certain now."""
        found = self._matcher.feed(piece, may_match=self._num_pushed >= self._min_tokens)
        if found is None:
            self._text_end += len(piece)
            self._held_text += piece
            return self._release(self._text_end - self._matcher.num_undecided)
        self._stop, length = found
        self._text_end += length
        self._held_text += piece[:length]
        certain = self._release(self._text_end - (0 if self._include_stop_str else len(self._stop)))
        self._held_text = ""
        self._held_ids.clear()
        return certain

    def _release(self, end: int) -> tuple[str, list[int]]:
        """Release the text before the character `end`, and the fewest ids that account for it."""
        length = len(self._held_text) - (self._text_end - end)
        text, self._held_text = self._held_text[:length], self._held_text[length:]
        ids: list[int] = []
        while self._held_ids and self._ids_end < end:
            token_id, self._ids_end = self._held_ids.popleft()
            ids.append(token_id)
        return text, ids
