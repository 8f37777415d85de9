"""Token ids to text, one token at a time, without ever showing half a character."""

import codecs
from collections.abc import Container
from typing import Protocol


class TokenTexts(Protocol):
    """The part of a tokenizer that turns ids into text."""

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes a token contributes to the text."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether a token steers the model and is no part of the text."""
        ...


class Detokenizer:
    """Feeds on token ids and returns the text that is certain.

    An incomplete UTF-8 sequence is held until it completes or proves invalid; invalid bytes become one U+FFFD
    per maximal subpart, as in `bytes.decode("utf-8", "replace")`. The pieces and the flush add up to the text
    of all ids at once.
    """

    def __init__(
        self,
        tokenizer: TokenTexts,
        *,
        skip_special_tokens: bool = True,
        visible_ids: Container[int] = (),
        strip_leading_space: bool = False,
    ) -> None:
        """visible_ids: special tokens that are not skipped.

        strip_leading_space: drop one space at the start (see `Tokenizer.adds_leading_space`)."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._visible_ids = visible_ids
        self._strip_next_space = strip_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def shown_bytes(self, token_id: int) -> bytes:
        """What a token contributes to the text: nothing if it is skipped."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id) and token_id not in self._visible_ids:
            return b""
        return self._tokenizer.token_bytes(token_id)

    def push(self, token_id: int) -> str:
        """The text that becomes certain with this token; often empty inside a multi-byte character."""
        raw = self.shown_bytes(token_id)
        if self._strip_next_space and raw:
            self._strip_next_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """The end of the text: U+FFFD for a sequence that never completed, else nothing."""
        return self._decoder.decode(b"", final=True)
