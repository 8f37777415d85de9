"""Where the tokens of a text begin in it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from hotloop.text.detokenizer import Detokenizer, TokenTexts


class TextOffsets:
    """Characters of the text before each token, as the tokens come. One that begins within a character is where that character
    begins; one without a text, where the whole characters before it end."""

    def __init__(self, tokenizer: TokenTexts, detokenizer: Detokenizer, start: int = 0) -> None:
        """detokenizer: a new one of the kind that the text was made with. start: what the text begins at."""
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer
        self._end = start

    def push(self, token_ids: Sequence[int]) -> list[int]:
        """Of the next tokens."""
        offsets = []
        for token_id in token_ids:
            piece = self._detokenizer.push(token_id)
            # A character that earlier tokens left incomplete and this one does not complete becomes a U+FFFD before it.
            own = codecs.getincrementaldecoder("utf-8")("replace").decode(self._tokenizer.token_bytes(token_id))
            offsets.append(self._end + max(0, len(piece) - len(own)))
            self._end += len(piece)
        return offsets
