import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.text.detokenizer import Detokenizer
from stub_tokenizer import StubTokenizer


def pieces_of(tokens: list[bytes], **options: bool) -> list[str]:
    detokenizer = Detokenizer(StubTokenizer(tokens), **options)
    return [*(detokenizer.push(i) for i in range(len(tokens))), detokenizer.flush()]


@pytest.mark.parametrize("text", ["😊", "你", "ď", "👨\u200d👩", "e\u0301", "\U0010ffff"])
def test_a_character_in_single_bytes_appears_whole(text: str) -> None:  # known fault B29
    pieces = pieces_of([bytes([byte]) for byte in text.encode()])
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert [len(piece) for piece in pieces if piece] == [1] * len(text)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([b"\xf0", b" hello"], ["", "\ufffd hello", ""]),
        ([b"\xe4", b"\xbd", b"\xa0"], ["", "", "你", ""]),
        ([b"\xff", b"a"], ["\ufffd", "a", ""]),
        ([b"\xe4\xbd", b"a"], ["", "\ufffda", ""]),
        ([b"a\xe4\xbd"], ["a", "\ufffd"]),
        ([b"\xed", b"\xa0", b"\x80"], ["", "", "\ufffd\ufffd\ufffd", ""]),
        ([b"\xf0\x9f", b"\xf0\x9f\x98", b"\x8a"], ["", "\ufffd", "😊", ""]),
        ([], [""]),
    ],
)
def test_invalid_bytes_become_one_replacement_each_and_nothing_stalls(
    tokens: list[bytes], expected: list[str]
) -> None:  # known faults B29, B30
    assert pieces_of(tokens) == expected
    assert "".join(expected) == b"".join(tokens).decode("utf-8", "replace")


def test_special_tokens_are_skipped_even_inside_a_character() -> None:
    stub = StubTokenizer([b"\xe4\xbd", b"<|im_end|>", b"\xa0"], special=[1])
    skipping, showing = Detokenizer(stub), Detokenizer(stub, skip_special_tokens=False)
    assert [skipping.push(i) for i in range(3)] == ["", "", "你"]
    assert [showing.push(i) for i in range(3)] == ["", "\ufffd<|im_end|>", "\ufffd"]


def test_only_the_first_space_is_stripped() -> None:
    assert "".join(pieces_of([b"", b"  a", b" b"], strip_leading_space=True)) == " a b"
    assert "".join(pieces_of([b"a", b" b"], strip_leading_space=True)) == "a b"


@given(st.lists(st.binary(max_size=5)))
def test_pieces_add_up_to_the_decoding_of_every_prefix(tokens: list[bytes]) -> None:  # known fault B38
    for end in range(len(tokens) + 1):
        assert "".join(pieces_of(tokens[:end])) == b"".join(tokens[:end]).decode("utf-8", "replace")


@given(st.text(), st.data())
def test_valid_text_is_never_replaced_and_never_shown_early(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    pieces = pieces_of(tokens)
    assert "".join(pieces) == text
    assert pieces[-1] == ""
