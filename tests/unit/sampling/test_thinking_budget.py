"""The budget of an answer's reasoning: a fold over its ids that forces the end and nothing else."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hotloop.errors import InvalidRequestError
from hotloop.request import Thinking
from hotloop.sampling.constraint import Constraint, Mask
from hotloop.sampling.thinking_budget import ThinkingBudget

VOCAB_SIZE = 300
BEGIN, END, CROSSING = 256, 257, 258
TEXTS = {BEGIN: "<think>", END: "</think>", CROSSING: "k>x"}
ONE = Thinking((BEGIN,), (END,), is_open=False)
MANY = Thinking(tuple(b"<think>"), tuple(b"</think>"), is_open=False)


def token_text(token_id: int) -> str:
    return TEXTS.get(token_id, chr(token_id) if token_id < 256 else "")


def ids(text: str) -> list[int]:
    return list(text.encode())


def budget_of(tokens: int, thinking: Thinking = ONE, inner: Constraint | None = None) -> ThinkingBudget:
    return ThinkingBudget(thinking, tokens, token_text, inner)


def allowed(constraint: Constraint) -> list[int] | None:
    """None: all."""
    mask = np.full(VOCAB_SIZE // 32 + 1, 0xFFFFFFFF, np.uint32)
    if not constraint.fill_mask(mask):
        return None
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def after(output: list[int], tokens: int, thinking: Thinking = ONE) -> list[int] | None:
    """What may come next, which does not depend on how the output came to be."""
    one, other = budget_of(tokens, thinking), budget_of(tokens, thinking)
    for token_id in output:
        assert allowed(one) is None or token_id in (allowed(one) or ())
        one.push(token_id)
    other.sync(output)
    assert allowed(one) == allowed(other)
    assert other.forced_token_ids()[:1] == (allowed(other) or [])
    assert not one.is_complete
    return allowed(one)


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_at_its_end_the_marker_is_forced_and_then_nothing(tokens: int) -> None:
    thought = ids("abcd")[:tokens]
    for n in range(tokens):
        assert after([BEGIN, *thought[:n]], tokens) is None
    assert after([BEGIN, *thought], tokens) == [END]
    assert after([BEGIN, *thought, END], tokens) is None
    assert after([BEGIN, *thought, END, *ids("answer")], tokens) is None
    open_ = replace(ONE, is_open=True)
    assert after(thought, tokens, open_) == [END]
    assert after([*thought, END], tokens, open_) is None


@pytest.mark.parametrize("output", ["answer", "<thank>", "a<think>bcdefg", "</think>", "< think>abcde"])
def test_an_answer_that_does_not_begin_with_it_has_no_budget(output: str) -> None:
    assert after(ids(output), 2) is None


def test_markers_in_any_tokens() -> None:
    """White space before the first; the end across tokens, in one that says more, in usual tokens and unusual ones."""
    for begin in (ids("<think>"), ids(" \n<think>"), [*ids("\n"), BEGIN], [*ids("<thin"), CROSSING]):
        assert after(begin, 1) is None
        assert after([*begin, 97], 2) is None
        for end in (ids("</think>"), [END], [*ids("</thin"), CROSSING]):
            assert after([*begin, *end], 9) is None
            assert after([*begin, *end, *ids("x" * 20)], 9) is None
        assert after([*begin, *ids("a" * 9)], 9) == [END]
    assert after([*ids("<thin"), CROSSING], 0) == [END], "what the begin's token goes on with is no token of the reasoning"


def test_an_end_of_several_tokens_is_forced_from_where_it_is() -> None:
    begin = list(MANY.begin_ids)
    one = budget_of(3, MANY)
    one.sync([*begin, *ids("ab<")])
    assert one.forced_token_ids() == ids("/think>"), "it has begun"
    one.sync([])
    one.sync([*begin, *ids("abc")])
    assert one.forced_token_ids() == ids("</think>")
    for n, token_id in enumerate(MANY.end_ids):
        assert allowed(one) == [token_id]
        assert one.push_draft(token_id)
        assert not n or not one.push_draft(token_id) or n == len(MANY.end_ids) - 1
    assert allowed(one) is None


def test_drafts_are_taken_back() -> None:
    one = budget_of(2)
    one.sync([BEGIN])
    assert one.push_draft(97)
    assert one.push_draft(98)
    assert not one.push_draft(99)
    assert one.push_draft(END)
    assert one.push_draft(99)
    one.sync([BEGIN], [97])
    assert allowed(one) is None
    one.push(99)
    assert allowed(one) == [END]
    one.sync([BEGIN])
    assert allowed(one) is None
    one.sync([])
    assert one.push_draft(120), "an answer of another kind"
    one.sync([])
    one.sync([BEGIN, 97, 98])
    assert allowed(one) == [END]


def test_random_walks() -> None:
    """Never more free tokens than the budget, whatever is drawn; the text is what tells."""
    rng = random.Random(1)
    pieces = [BEGIN, END, CROSSING, *b"<think>/ ab", 299]
    for _ in range(400):
        thinking = rng.choice([ONE, MANY, replace(ONE, is_open=True), replace(MANY, is_open=True)])
        tokens = rng.randrange(6)
        one, output = budget_of(tokens, thinking), list[int]()
        for _ in range(40):
            one.sync(output)
            output.append(rng.choice(allowed(one) or pieces))
        text = "".join(map(token_text, output)).lstrip()
        if not (thinking.is_open or text.startswith("<think>")):
            continue
        thought, end, _ = text.removeprefix("" if thinking.is_open else "<think>").partition("</think>")
        assert end
        assert len(thought) <= 8 + 8 * tokens


class Letters:
    """Allows letters after thinking, and ends with z; implements `Constraint`."""

    def __init__(self) -> None:
        self.pushed: list[int] = []

    @property
    def is_complete(self) -> bool:
        return self.pushed[-1:] == [ord("z")]

    def sync(self, output_token_ids: list[int], draft_token_ids: list[int] | tuple[int, ...] = ()) -> None:
        self.pushed = [*output_token_ids, *draft_token_ids]

    def fill_mask(self, mask: Mask) -> bool:
        if END not in self.pushed:
            return False
        mask[:] = 0
        mask[3] = np.uint32(0x07FFFFFE)
        return True

    def push(self, token_id: int) -> None:
        if END in self.pushed and not 97 <= token_id <= 122:
            raise InvalidRequestError("no letter")
        self.pushed.append(token_id)

    def push_draft(self, token_id: int) -> bool:
        self.push(token_id)
        if self.is_complete:
            self.pushed.pop()
        return self.pushed[-1:] == [token_id]

    def forced_token_ids(self) -> list[int]:
        return [97] if self.pushed[-1:] == [END] else []


@pytest.mark.parametrize("thinking", [ONE, MANY])
def test_an_answer_that_may_begin_with_any_text_may_think_in_any_tokens(thinking: Thinking) -> None:
    output = [*b"\n <think>ab"]
    for begins_free in (False, True):
        one = ThinkingBudget(thinking, 2, token_text, Letters(), begins_free=begins_free)
        one.sync(output)
        assert one.forced_token_ids()[:1] == ([thinking.end_ids[0]] if begins_free else [])


def test_over_another_constraint() -> None:
    one = budget_of(1, replace(ONE, is_open=True), Letters())  # type: ignore[arg-type]
    assert allowed(one) is None
    assert one.forced_token_ids() == []
    one.push(5)
    assert allowed(one) == one.forced_token_ids() == [END]
    assert one.push_draft(END)
    assert allowed(one) == list(range(97, 123))
    assert one.forced_token_ids() == [97]
    assert not one.push_draft(ord("z"))
    one.sync([5], [END])
    assert not one.is_complete
    one.push(ord("z"))
    assert one.is_complete
    one.sync([5])
    assert allowed(one) == [END]
    one.sync([5, END])
    closed = budget_of(1, ONE, Letters())  # type: ignore[arg-type]
    closed.sync(ids("<think>abc"))
    assert allowed(closed) is None, "text of the form, not a marker"
    closed.sync([])
    closed.sync([BEGIN, 5])
    assert allowed(closed) == [END]
    with pytest.raises(InvalidRequestError):
        one.push(5)
