"""Texts of sampling parameters as the tokens that write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Protocol

from hotloop.errors import InvalidRequestError
from hotloop.request import Breaker, TokenSequence

_MAX_BREAKER_SETS = 16


class Encoder(Protocol):
    """The part of a tokenizer that this needs."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]: ...


class Words:
    """Finds tokens of texts. Thread-safe."""

    def __init__(self, tokenizer: Encoder) -> None:
        self._tokenizer = tokenizer
        self.breakers = lru_cache(_MAX_BREAKER_SETS)(self._breakers)

    def bad_words(self, words: Iterable[str]) -> tuple[TokenSequence, ...]:
        """The usual tokens of each word, at the start of a text and after a space.

        Raises: InvalidRequestError for a word that the vocabulary cannot write.
        """
        found: dict[TokenSequence, None] = {}
        for word in words:
            bare = word.lstrip(" ") or word
            for text in (bare, f" {bare}"):
                ids = tuple(self._tokenizer.encode(text, add_special=False))
                if not ids:
                    raise InvalidRequestError(f"bad_words holds {word!r:.60}, which has no tokens in this vocabulary")
                found[ids] = None
        return tuple(found)

    def _breakers(self, texts: tuple[str, ...]) -> tuple[Breaker, ...]:
        """Where a text shows up in tokens: inside of one, or from the end of one on over the usual tokens of the rest."""
        if not texts:
            return ()
        wanted = [text.encode() for text in texts]
        rests: dict[bytes, set[bytes]] = {}  # by the part of a text before them
        for text in wanted:
            for size in range(1, len(text)):
                rests.setdefault(text[:size], set()).add(text[size:])
        is_inside = re.compile(b"|".join(map(re.escape, wanted))).search
        longest = max(map(len, wanted)) - 1
        holders: list[int] = []
        beginners: dict[bytes, list[int]] = {}  # by the part of a text that they end with
        for token_id, token in enumerate(self._token_bytes):
            if is_inside(token):
                holders.append(token_id)
                continue
            for size in range(1, min(longest, len(token)) + 1):
                if token[-size:] in rests:
                    beginners.setdefault(token[-size:], []).append(token_id)
        found: list[Breaker] = [(tuple(holders), ((),))]
        for start, ids in beginners.items():
            going_on = tuple(rest for text in sorted(rests[start]) if (rest := self._tokens_of(text)))
            if going_on:
                found.append((tuple(ids), going_on))
        return tuple(found)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token_id) for token_id in range(self._tokenizer.vocab_size)]

    def _tokens_of(self, text: bytes) -> TokenSequence | None:
        """The usual tokens; None for a part of a character, or where they write something else (a space before it)."""
        try:
            ids = tuple(self._tokenizer.encode(text.decode(), add_special=False))
        except UnicodeDecodeError:
            return None
        return ids if b"".join(self._token_bytes[i] for i in ids) == text else None
