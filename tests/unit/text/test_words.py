"""Bad words and sequence breakers as tokens."""

import pytest

from hotloop.errors import InvalidRequestError
from hotloop.text.words import Words

TOKENS = [b"a", b"b", b" ", b"\n", b"ab", b" ab", b"a\n", b"\nb", b"\xc3", b"\xa9", b"b\xc3", b"c"]


class Greedy:
    """Writes a text with the longest token first; knows no z."""

    @property
    def vocab_size(self) -> int:
        return len(TOKENS)

    def token_bytes(self, token_id: int) -> bytes:
        return TOKENS[token_id]

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        assert not add_special
        assert not parse_special
        rest, ids = text.replace("z", "").encode(), []
        while rest:
            token_id = max((i for i, t in enumerate(TOKENS) if rest.startswith(t)), key=lambda i: len(TOKENS[i]))
            ids.append(token_id)
            rest = rest[len(TOKENS[token_id]) :]
        return ids


WORDS = Words(Greedy())


def test_bad_words_with_and_without_a_space_before() -> None:
    assert WORDS.bad_words(["ab", " ab"]) == ((4,), (5,))
    assert WORDS.bad_words(["ba"]) == ((1, 0), (2, 1, 0))
    assert WORDS.bad_words([" "]) == ((2,), (2, 2))
    assert WORDS.bad_words([]) == ()
    with pytest.raises(InvalidRequestError, match="bad_words holds 'z', which has no tokens"):
        WORDS.bad_words(["b", "z"])


def test_breakers_inside_of_a_token_and_over_several() -> None:
    assert WORDS.breakers(()) == ()
    assert WORDS.breakers(("\n",)) == (((3, 6, 7), ((),)),)
    assert WORDS.breakers(("\n", "c")) == (((3, 6, 7, 11), ((),)),)
    assert set(WORDS.breakers(("ab",))) == {((4, 5), ((),)), ((0,), ((1,),))}
    # 4 and 5 end with a b, 1 is one; then a b and a, of which 4 is a usual token.
    assert set(WORDS.breakers(("bab",))) == {((), ((),)), ((1, 4, 5, 7), ((4,),))}
    assert set(WORDS.breakers(("bc", "bb"))) == {((), ((),)), ((1, 4, 5, 7), ((1,), (11,)))}


def test_a_breaker_s_first_bytes_may_be_half_a_character() -> None:
    assert WORDS.breakers(("é",)) == (((), ((),)),)  # its second half alone is no text
    assert set(WORDS.breakers(("bé",))) == {((), ((),)), ((1, 4, 5, 7), ((8, 9),))}


def test_breakers_are_found_once() -> None:
    assert WORDS.breakers(("\n",)) is WORDS.breakers(("\n",))
