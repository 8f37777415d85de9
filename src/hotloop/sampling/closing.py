"""Closing: of the tokens that JSON allows next, those that bring it to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hotloop.sampling.constraint import Mask

_CLOSING = frozenset(b'"]}')
_DIGITS = frozenset(b"0123456789")


class Closing:
    """For one vocabulary. Strings, arrays and objects are closed as soon as they may be, numbers as soon as something may
    follow them. What else has to be written is left to the model, but for going round in circles."""

    def __init__(self, written: Iterable[bytes]) -> None:
        """written: the bytes of each token, none of control tokens."""
        token_bytes = list(written)

        def mask_of(holds: Callable[[bytes], bool]) -> Mask:
            bits = np.zeros(-(-len(token_bytes) // 32) * 32, np.uint8)
            bits[: len(token_bytes)] = [bool(text) and holds(text) for text in token_bytes]
            return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

        self._ends_in_digit = [bool(text) and text[-1] in _DIGITS for text in token_bytes]
        self._closing = mask_of(_CLOSING.issuperset)
        self._quotes = mask_of(lambda text: text[:1] == b'"' and _CLOSING.issuperset(text))
        self._commas = mask_of(lambda text: text[:1] == b",")
        self._no_digits = ~mask_of(lambda text: text[0] in _DIGITS)
        self._no_zeros = ~mask_of(lambda text: not text.strip(b"0"))
        self._letters = mask_of(lambda text: text == b"q")  # in none of JSON's words: allowed inside of strings only

    def restrict(self, mask: Mask, before: Sequence[int]) -> None:
        """Leave of a mask what leads to the end.

        mask: uint32 [ceil(vocab_size / 32) or more], bit id % 32 of word id / 32: what is allowed. before: the ids that the
        answer ends with, so far.
        """
        words = mask[: len(self._closing)]
        in_string = (words & self._letters).any()
        others = self._others_than(before)
        choices = [self._quotes] if in_string else [self._closing, self._commas]
        if not in_string and before and self._ends_in_digit[before[-1]]:
            # 0.000... has to become more than 0 before it may end, and a multiple of 7 has to be met.
            choices += [self._no_digits, self._no_zeros & others]
        choices.append(others)
        for choice in choices:
            left = words & choice
            if left.any():
                words[:] = left
                mask[len(words) :] = 0
                break

    def _others_than(self, token_ids: Sequence[int]) -> Mask:
        mask = np.full(len(self._closing), 0xFFFFFFFF, np.uint32)
        for token_id in token_ids:
            mask[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        return mask
