"""A tokenizer of scripted pieces: token i is the i-th piece; `special` ids carry no text unless asked for."""

from collections.abc import Sequence


class StubTokenizer:
    def __init__(self, pieces: Sequence[str | bytes], special: Sequence[int] = ()) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._special = frozenset(special)

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special
