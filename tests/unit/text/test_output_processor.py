"""Stop strings, held-back text and the common cut of text and ids, on scripted tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hotloop.text.output_processor import OutputProcessor, TextDelta
from stub_tokenizer import StubTokenizer


def deltas_of(
    pieces: Sequence[str | bytes], stop: Sequence[str] = (), *, finish: str = "length", **options: Any
) -> list[TextDelta]:
    """One delta for each token, then the final one."""
    special = options.pop("special", ())
    processor = OutputProcessor(StubTokenizer(pieces, special), stop=stop, **options)
    return [*(processor.push([i]) for i in range(len(pieces))), processor.finish(finish)]


def text_of(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: Sequence[TextDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def test_stop_over_several_tokens_is_never_shown() -> None:  # known fault B22
    deltas = deltas_of(["DEF", "G", "HI", "JK"], ["DEFGHIJ"])
    assert text_of(deltas) == ""
    assert ids_of(deltas) == []
    assert deltas[-1] == TextDelta("", (), "stop", "DEFGHIJ")


def test_stop_inside_a_token() -> None:  # known fault B103
    deltas = deltas_of(["ABC", "DEFGH"], ["DE"])
    assert (text_of(deltas), ids_of(deltas)) == ("ABC", [0])
    assert deltas[1].finish_reason == "stop"


def test_a_token_with_text_before_the_stop_is_kept() -> None:
    deltas = deltas_of(["AB", "CDE", "F"], ["DE"])
    assert (text_of(deltas), ids_of(deltas)) == ("ABC", [0, 1])


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_held_back_text_is_flushed_when_the_stop_never_comes(finish: str) -> None:  # known fault B23
    deltas = deltas_of(["UNO", " DUE", " TRE"], ["TRE\nAAAA"], finish=finish)
    assert [delta.text for delta in deltas] == ["UNO", " DUE", " ", "TRE"]
    assert ids_of(deltas) == [0, 1, 2]
    assert deltas[-1] == TextDelta("TRE", (), finish, None)


def test_nothing_is_held_back_when_no_stop_can_follow() -> None:  # known fault B23
    assert [delta.text for delta in deltas_of(["a", "bc", "d"], ["xyz", "ab!"])] == ["", "abc", "d", ""]


def test_overlapping_and_self_overlapping_stops() -> None:
    assert text_of(deltas_of(["aaab", "aaac"], ["aac"])) == "aaaba"
    assert text_of(deltas_of(["x", "ab", "ab", "ac"], ["abac"])) == "xab"


def test_the_match_that_ends_first_wins_in_any_order_of_the_stops() -> None:
    for stops in (["BCDEX", "CD"], ["CD", "BCDEX"]):
        deltas = deltas_of(["ABCDEX"], stops)
        assert (text_of(deltas), deltas[-1].stop) == ("AB", "CD")
    for stops in (["D", "BCD"], ["BCD", "D"]):
        assert text_of(deltas_of(["ABCD"], stops)) == "A"


def test_included_stop_ends_the_text_and_its_token_is_kept() -> None:  # known fault B130
    deltas = deltas_of(["AB", "CD", "EF", "G"], ["DE"], include_stop_str=True)
    assert (text_of(deltas), ids_of(deltas)) == ("ABCDE", [0, 1, 2])


@pytest.mark.parametrize(("include", "text", "ids"), [(False, "ab", [0]), (True, "ab\n", [0, 1])])
def test_stop_token_with_a_text(include: bool, text: str, ids: list[int]) -> None:  # known fault B130
    processor = OutputProcessor(StubTokenizer(["ab", "\n"]), include_stop_str=include)
    deltas = [processor.push([0, 1], ends_with_stop_token=True), processor.finish("stop")]
    assert (text_of(deltas), ids_of(deltas)) == (text, ids)


def test_eos_has_no_text_but_counts() -> None:
    deltas = deltas_of(["ab", "<eos>"], special=[1], finish="stop")
    assert (text_of(deltas), ids_of(deltas), deltas[-1].finish_reason) == ("ab", [0, 1], "stop")
    shown = deltas_of(["ab", "<eos>"], special=[1], skip_special_tokens=False)
    assert text_of(shown) == "ab<eos>"


def test_hidden_stop_token_does_not_swallow_an_incomplete_character() -> None:
    processor = OutputProcessor(StubTokenizer([b"a\xe4", "\n"]))
    deltas = [processor.push([0, 1], ends_with_stop_token=True), processor.finish("stop")]
    assert (text_of(deltas), ids_of(deltas)) == ("a\ufffd", [0])


def test_stop_before_min_tokens_does_not_count() -> None:  # known fault B102
    pieces = ["a", "STOP", "b", "ST", "OP", "c"]
    assert text_of(deltas_of(pieces, ["STOP"], min_tokens=3)) == "aSTOPb"
    assert text_of(deltas_of(pieces, ["STOP"], min_tokens=2)) == "a"  # it ends in the second token
    # A match may begin before the min_tokens-th token, if it ends there.
    assert text_of(deltas_of(pieces, ["STOP"], min_tokens=5)) == "aSTOPb"
    assert text_of(deltas_of(pieces, ["STOP"], min_tokens=6)) == "aSTOPbSTOPc"


def test_tokens_after_a_stop_are_dropped_and_not_counted() -> None:  # known fault B57
    processor = OutputProcessor(StubTokenizer(["ab", "|", "c"]), stop=["|"])
    assert processor.push([0, 1, 2, 2]) == TextDelta("ab", (0,), "stop", "|")
    assert processor.push([2]) == TextDelta("", (), "stop", "|")
    assert processor.finish("length") == TextDelta("", (), "stop", "|")


def test_stop_on_the_last_allowed_token_is_a_stop() -> None:  # known fault B26
    assert deltas_of(["a", "b", "."], ["."], finish="length")[-1].finish_reason == "stop"


def test_incomplete_character_at_the_end() -> None:
    deltas = deltas_of(["a", b"\xf0\x9f", b"\x98"])
    assert [delta.text for delta in deltas] == ["a", "", "", "\ufffd"]
    assert ids_of(deltas) == [0, 1, 2]


def test_ids_of_a_split_character_come_with_the_character() -> None:
    deltas = deltas_of([b"\xe4", b"\xbd", b"\xa0"])
    assert [delta.token_ids for delta in deltas] == [(), (), (0, 1, 2), ()]


def test_leading_space_depends_on_whether_the_output_starts_the_text() -> None:
    class Prefixing(StubTokenizer):
        adds_leading_space = True

    stub = Prefixing([" a", " b", "<s>"], special=[2])
    assert OutputProcessor(stub).push([0, 1]).text == "a b"
    assert OutputProcessor(stub, prompt_ids=[2]).push([0, 1]).text == "a b"
    assert OutputProcessor(stub, prompt_ids=[2, 0]).push([0, 1]).text == " a b"


def expected_text(pieces: list[str], stops: list[str], min_tokens: int, include: bool) -> tuple[str, int]:
    """Text and number of ids by the definition, looking at every end position in turn."""
    text, token_of_char = "", []
    for n, piece in enumerate(pieces):
        text += piece
        token_of_char += [n] * len(piece)
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found and token_of_char[end - 1] + 1 >= min_tokens:
            cut = end if include else end - max(map(len, found))
            return text[:cut], token_of_char[cut - 1] + 1 if cut else 0
    return text, len(pieces)


short_text = st.text("ab😊", max_size=4)


@given(
    st.lists(short_text, max_size=8),
    st.lists(st.text("ab😊", min_size=1, max_size=4), max_size=3),
    st.integers(0, 5),
    st.booleans(),
    st.integers(1, 4),
)
@example(["ab", "a"], ["ba"], 0, False, 1)
def test_any_chunking_gives_the_text_of_the_definition(
    pieces: list[str], stops: list[str], min_tokens: int, include: bool, chunk: int
) -> None:  # known faults B22, B35
    stub = StubTokenizer(pieces)
    processor = OutputProcessor(stub, stop=stops, include_stop_str=include, min_tokens=min_tokens)
    ids = list(range(len(pieces)))
    deltas = [processor.push(ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
    deltas.append(processor.finish("length"))
    text, num_ids = expected_text(pieces, stops, min_tokens, include)
    assert text_of(deltas) == text
    assert ids_of(deltas) == ids[:num_ids]
    assert (deltas[-1].finish_reason == "stop") == (deltas[-1].stop is not None)


@given(st.lists(short_text, max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_only_the_beginning_of_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:  # known fault B23
    processor = OutputProcessor(StubTokenizer(pieces), stop=stops)
    seen, all_text = "", ""
    for i, piece in enumerate(pieces):
        seen += processor.push([i]).text
        all_text += piece
        if processor.stopped:
            break
        held = all_text.removeprefix(seen)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
