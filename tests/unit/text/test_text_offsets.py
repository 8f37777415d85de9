"""Where tokens begin in the text that is made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.text.detokenizer import Detokenizer
from hotloop.text.text_offsets import TextOffsets
from stub_tokenizer import StubTokenizer


def offsets_of(tokens: list[bytes], special: tuple[int, ...] = (), **options: bool) -> list[int]:
    stub = StubTokenizer(tokens, special)
    return TextOffsets(stub, Detokenizer(stub, **options)).push(range(len(tokens)))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([b"Hello", b" world", b"!"], [0, 5, 11]),
        ([b"a ", b"\xf0", b"\x9f", b"\x98", b"\x8a", b"b"], [0, 2, 2, 2, 2, 3]),  # one character
        ([b"\xff", b"ok", b"\xf0", b" hello", b"\xe4", b"\xbd"], [0, 1, 3, 4, 10, 10]),  # U+FFFD, o, k, U+FFFD
        ([b"\xe4\xbd", b"\xa0x", b"y"], [0, 0, 2]),
        ([b"", b"a", b"", b"b"], [0, 0, 1, 1]),
    ],
)
def test_offsets(tokens: list[bytes], expected: list[int]) -> None:
    assert offsets_of(tokens) == expected


def test_tokens_without_a_text_take_no_room() -> None:
    tokens = [b"<bos>", b" a", b"<end>", b"b"]
    assert offsets_of(tokens, (0, 2), strip_leading_space=True) == [0, 0, 1, 1]
    assert offsets_of(tokens, (0, 2), skip_special_tokens=False) == [0, 5, 7, 12]


@given(st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=4).map(str.encode))), st.data())
def test_each_token_is_found_where_it_begins(tokens: list[bytes], data: st.DataObject) -> None:
    text = b"".join(tokens).decode("utf-8", "replace")
    offsets = offsets_of(tokens)
    assert offsets == sorted(offsets)
    for i, (token, offset) in enumerate(zip(tokens, offsets, strict=True)):
        assert 0 <= offset <= len(text)
        rest = b"".join(tokens[i:]).decode("utf-8", "replace")
        if token and not rest.startswith("\ufffd"):  # else it may be the rest of a character
            assert text[offset:] == rest
    stub = StubTokenizer(tokens)
    pieces = TextOffsets(stub, Detokenizer(stub), 7)
    cut = data.draw(st.integers(0, len(tokens)))
    assert pieces.push(range(cut)) + pieces.push(range(cut, len(tokens))) == [7 + offset for offset in offsets]
