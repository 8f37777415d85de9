"""The texts of a vocabulary in little memory."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import overload


class TokenTexts(Sequence[str]):
    """Immutable texts by token id, stored as one piece of UTF-8: 10^5 Python strings would take ten megabytes."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        self._bytes = b"".join(encoded)
        self._ends = array("Q", accumulate(map(len, encoded), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self._bytes[self._ends[index] : self._ends[index + 1]].decode()
