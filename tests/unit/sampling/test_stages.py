"""Free text, forms after a marker, and thinking before both: what each allows, and that nothing but the output decides it."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from hotloop.errors import InvalidRequestError
from hotloop.request import Thinking
from hotloop.sampling.constraint import Constraint
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.sampling.markers import START, Markers
from hotloop.sampling.stages import StagedConstraint
from hotloop.sampling.token_index import TokenIndex
from hotloop.structured_outputs import CallForm, CallsForm, StructuredOutputsParams, Trigger
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.gguf_writer import WritableValue
from tiny_tokenizer import tokenizer_metadata

VOCAB_SIZE = 320
STOP = 266  # <|im_end|>, which ends answers
EXTRA = ["<think>", "</think>", "<call>", ">{", ">x", "nk>\n\n", "e>a<call>{", "<call>{", "\n\n", "}</call>"]


def metadata() -> dict[str, WritableValue]:
    """The byte-level tokenizer with tokens that no text is encoded to, some over the ends of markers."""
    values = tokenizer_metadata(VOCAB_SIZE)
    tokens, types = list(values["tokenizer.ggml.tokens"]), np.array(values["tokenizer.ggml.token_type"])  # type: ignore[arg-type]
    for i, text in enumerate(EXTRA):
        tokens[267 + i], types[267 + i] = text.replace("\n", "Ċ"), 1
    return {**values, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types.astype(np.int32)}


TOKENIZER = Tokenizer.from_metadata(metadata())
IDS = {TOKENIZER.token_bytes(i).decode("latin-1"): i for i in reversed(range(VOCAB_SIZE))}
OPEN = Thinking((IDS["<think>"],), (IDS["</think>"],), True)
CLOSED = Thinking((IDS["<think>"],), (IDS["</think>"],), False)
SEVERAL = Thinking(tuple(map(ord, "<think>")), tuple(map(ord, "</think>")), False)  # no tokens of their own
FORMS = (CallForm('{"f": ', '{"enum": [1, "é"]}', "}", "f"), CallForm('{"g": ', '{"type": "boolean"}', "}", "g"))


def calls(
    *, must: bool = False, many: bool = True, at_start: bool = False, content_schema: str | None = None
) -> StructuredOutputsParams:
    triggers = (Trigger("<call>", "<call>"),) if not at_start else (Trigger("{", "{"), Trigger("<x>", ""))
    around: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()) if at_start else (("<call>",), ("</call>",))
    return StructuredOutputsParams(
        calls=CallsForm(FORMS, *around, ";", triggers, at_start, must, many, content_schema), disable_any_whitespace=True
    )


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(lambda: TOKENIZER)


def start(compiler: GrammarCompiler, spec: StructuredOutputsParams, thinking: Thinking | None = None) -> Constraint:
    return compiler.compile(spec).start([STOP], thinking)


def allowed(constraint: Constraint, output: Sequence[int]) -> set[int]:
    """What may come after the output; an id above all others stands for the fact that there is no mask."""
    mask = np.zeros(VOCAB_SIZE // 32 + 1, np.uint32)
    constraint.sync(output)
    if not constraint.fill_mask(mask):
        return {*range(VOCAB_SIZE), VOCAB_SIZE}
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()) - {*range(VOCAB_SIZE, 1000)}


def ids_of(text: str) -> list[int]:
    """Pieces between bars are tokens; without bars, each byte is one."""
    if "|" in text:
        return [IDS[piece] for piece in text.split("|")]
    return [IDS[byte] for byte in text.encode().decode("latin-1")]


def accepts(constraint: Constraint, ids: Sequence[int]) -> bool:
    """Whether they may be drawn one after the other and then be the answer."""
    for i, token_id in enumerate(ids):
        if token_id not in allowed(constraint, ids[:i]) or constraint.is_complete:
            return False
        constraint.push(token_id)
    return constraint.is_complete or STOP in allowed(constraint, ids)


CALL_F, CALL_G = '<call>{"f": "é"}</call>', '<call>{"g": true}</call>'


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (
            calls(),
            ["", "hi", f"a{CALL_F}b{CALL_G}", "<cal", "<call", f"<{CALL_F}", "a|<call>|{|\"|g|\"|:| |t|r|u|e|}|<|/|c|a|l|l|>"],
            ["<call>", '<call>{"h": 1}', '<call>{"f": 2}', "<call>x", '<call>{"f": "é"}'],
        ),
        (calls(many=False), ["", f"a{CALL_F}"], [f"{CALL_F}b", f"{CALL_F}{CALL_G}"]),
        (calls(must=True), [CALL_F, f"{CALL_F};{CALL_G}"], ["", "a", f"a{CALL_F}", f"{CALL_F};", f"{CALL_F}{CALL_G}"]),
        (calls(must=True, many=False), [CALL_G], [f"{CALL_F};{CALL_G}"]),
        (calls(at_start=True), ['{"f": 1}', '\n {"g": true};{"f": 1}', '<x>{"f": 1}', 'a{"h"', "<x"], ['{"h"', "{}", '<x>{"h']),
        (calls(content_schema='{"type": "integer"}'), ["12", CALL_F], ["", "a", "12 " + CALL_F, "<call>"]),
    ],
    ids=["auto", "auto, one", "required", "required, one", "at the start", "json or calls"],
)
def test_what_is_allowed(compiler: GrammarCompiler, spec: StructuredOutputsParams, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(start(compiler, spec), ids_of(text)), text
    for text in bad:
        assert not accepts(start(compiler, spec), ids_of(text)), text


def test_free_text_has_no_mask(compiler: GrammarCompiler) -> None:
    for output in ([], ids_of("hi"), [STOP], [264, 300], ids_of("a<ca"), ids_of(CALL_F), ids_of(f"{CALL_F} x")):
        constraint = start(compiler, calls())
        assert VOCAB_SIZE in allowed(constraint, output)
        assert constraint.forced_token_ids() == []


def test_a_token_over_the_end_of_a_marker_is_barred_if_nothing_can_follow(compiler: GrammarCompiler) -> None:
    spec = calls()
    everything = set(range(VOCAB_SIZE))
    bad_end, whole = IDS[">x"], IDS["e>a<call>{"]
    assert allowed(start(compiler, spec), ids_of("<call")) == everything - {bad_end}
    assert VOCAB_SIZE in allowed(start(compiler, spec), ids_of("<c"))
    assert IDS[">{"] in allowed(start(compiler, spec), ids_of("<call"))
    assert whole in allowed(start(compiler, spec), ids_of("hm"))
    for output in ([*ids_of("<call"), IDS[">{"]], [whole], [*ids_of("x"), IDS["<call>{"]]):
        assert allowed(start(compiler, spec), output) == {IDS['"']}
    triggers = (Trigger("<call>", "<call>"),)
    with_line_end = CallsForm(FORMS[1:], ("<call>", "\n"), (), ";", triggers, at_start=False, must=False, many=True)
    barred = everything - allowed(start(compiler, StructuredOutputsParams(calls=with_line_end)), [])
    assert barred == {IDS["e>a<call>{"], IDS["<call>{"]}


def test_thinking_comes_first(compiler: GrammarCompiler) -> None:
    json = StructuredOutputsParams(json={"type": "integer"})
    for spec, answer in ((json, "12"), (calls(must=True), CALL_F), (calls(), f"a{CALL_F}")):
        for end in ("</think>", "</think>\n\n"):
            assert accepts(start(compiler, spec, OPEN), ids_of(f"hm <call>{end}{answer}" if spec is not calls() else ""))
        assert accepts(start(compiler, spec, OPEN), [IDS["h"], IDS["</think>"], IDS["\n\n"], *ids_of(answer)])
        assert accepts(start(compiler, spec, OPEN), [*ids_of("</thi"), IDS["nk>\n\n"], *ids_of(answer)])
        assert accepts(start(compiler, spec, CLOSED), [IDS["<think>"], *ids_of("hm</think>" + answer)])
        assert accepts(start(compiler, spec, CLOSED), ids_of(answer))
    for spec in (json, calls(must=True)):
        assert STOP not in allowed(start(compiler, spec, OPEN), ids_of("hm"))
        assert IDS["x"] not in allowed(start(compiler, spec, OPEN), ids_of("hm</think>"))
        assert IDS["x"] not in allowed(start(compiler, spec, CLOSED), [])
        assert not accepts(start(compiler, spec, CLOSED), [IDS["1"], IDS["<think>"]])
    assert STOP in allowed(start(compiler, calls(), OPEN), ids_of("hm"))
    several_tokens = Thinking((1, 2), (3, 4), False)
    assert IDS["<think>"] not in allowed(start(compiler, json, several_tokens), [])


def test_what_may_come_before_a_form_is_no_stop(compiler: GrammarCompiler) -> None:
    spec = StructuredOutputsParams(json={"type": "integer"})
    for stop, output, thinking in ((IDS["\n"], [IDS["</think>"]], OPEN), (IDS["<think>"], [], CLOSED)):
        assert stop in allowed(compiler.compile(spec).start([STOP], thinking), output)
        assert stop not in allowed(compiler.compile(spec).start([STOP, stop], thinking), output)


@pytest.mark.parametrize("between", [[], ["\n\n"], ["\n", "\n"]])
def test_a_form_after_thinking_is_closed_as_far_from_the_end(compiler: GrammarCompiler, between: list[str]) -> None:
    spec = StructuredOutputsParams(json={"type": "string"}, finish_within=5)
    constraint = compiler.compile(spec).start([STOP], OPEN, 20)
    output = [IDS["</think>"], *(IDS[text] for text in between), IDS['"']]
    while len(output) < 20 - 5:
        assert IDS["a"] in allowed(constraint, output)
        output.append(IDS["a"])
    assert allowed(constraint, output) == {IDS['"']}


@pytest.mark.parametrize("thinking", [CLOSED, SEVERAL])
def test_before_free_text_thinking_begins_in_any_tokens(compiler: GrammarCompiler, thinking: Thinking) -> None:
    """As its readers see it: after white space too. A call within it is none."""
    for begin in ("<think>", "\n <think>"):
        for ids in (ids_of(begin), [*ids_of(begin.removesuffix("<think>")), IDS["<think>"]]):
            assert accepts(start(compiler, calls(), thinking), [*ids, *ids_of(f"hm <call>x</think>a{CALL_F}")])
            assert not accepts(start(compiler, calls(), thinking), [*ids, *ids_of("hm</think><call>x")])
            drafting = start(compiler, calls(), thinking)
            assert all(map(drafting.push_draft, [*ids, *ids_of("<call>x")]))
            assert not accepts(drafting, ids_of("<call>x"))
    for text in ("a<think><call>x", "<thin<call>x", "<call>x"):
        assert not accepts(start(compiler, calls(), thinking), ids_of(text))


@pytest.mark.parametrize("spec", [calls(), calls(many=False), calls(must=True), calls(at_start=True)])
@pytest.mark.parametrize("thinking", [None, OPEN, CLOSED, SEVERAL])
def test_only_the_output_decides(compiler: GrammarCompiler, spec: StructuredOutputsParams, thinking: Thinking | None) -> None:
    """Steps done again, drafts that were wrong, requests resumed: the masks are those of one that saw the output only."""
    rng = random.Random(1)
    favourites = [*range(267, 267 + len(EXTRA)), *ids_of('<cal>{}/"fg:é1true ;')]
    num_calls = 0
    for _ in range(12):
        constraint = start(compiler, spec, thinking)
        output: list[int] = []
        while len(output) < 40:
            choices = allowed(constraint, output)
            if rng.random() < 0.25:
                fresh = start(compiler, spec, thinking)
                assert allowed(fresh, output) == choices
                assert fresh.is_complete == constraint.is_complete
            if constraint.is_complete or choices <= {STOP}:
                break
            preferred = [i for i in favourites if i in choices] or sorted(choices - {STOP, VOCAB_SIZE})
            drafts = [rng.choice(preferred if k == 0 else favourites) for k in range(rng.randrange(4))]
            for draft in drafts:
                if not constraint.push_draft(draft):
                    break
            token_id = drafts[0] if drafts and rng.random() < 0.5 and drafts[0] in choices else rng.choice(preferred)
            constraint.sync(output)
            constraint.push(token_id)
            output.append(token_id)
            if rng.random() < 0.1:
                del output[rng.randrange(len(output)) :]
                constraint.sync(output)
        num_calls += '": ' in TOKENIZER.decode(output)
    assert num_calls or spec.calls is None or spec.calls.at_start


def test_forced_tokens_are_those_of_the_form(compiler: GrammarCompiler) -> None:
    constraint = start(compiler, calls(many=False))
    constraint.sync([*ids_of("a"), IDS["<call>"]])
    forced = constraint.forced_token_ids()
    assert TOKENIZER.decode(forced) == '{"'
    for token_id in forced:
        assert constraint.push_draft(token_id)
    assert start(compiler, StructuredOutputsParams(choice=["yes"]), OPEN).forced_token_ids() == []


def test_a_plain_form_needs_no_stages(compiler: GrammarCompiler) -> None:
    assert not isinstance(start(compiler, calls(must=True)), StagedConstraint)
    assert isinstance(start(compiler, calls(must=True), OPEN), StagedConstraint)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"properties": {"a": {"items": {"not": {}}}}}', r"f.properties.a.items cannot be enforced: .*not"),
        (
            '{"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(?=a)"}]}}}',
            r"f.properties.a.anyOf\[1\] cannot",
        ),
        ('{"type": "nonsense"}', "f cannot be enforced: Invalid type: nonsense$"),
        ('{"x-guidance": {}}', "x-guidance"),
        ('{"properties": {"a": {"type": "integer", "multipleOf": 1234567}}}', "too fine"),
    ],
)
def test_a_schema_that_cannot_be_enforced(compiler: GrammarCompiler, schema: str, message: str) -> None:  # known fault B66
    forms, triggers = (CallForm("", schema, "", "f"),), (Trigger("<call>", "<call>"),)
    for must in (False, True):
        form = CallsForm(forms, ("<call>",), (), "", triggers, at_start=False, must=must, many=True)
        with pytest.raises(InvalidRequestError, match=message):
            compiler.compile(StructuredOutputsParams(calls=form))


@pytest.mark.parametrize("marker", ["<call>", "</think>", "aab", "ll", "{"])
def test_tokens_over_the_end_of_a_marker(marker: str) -> None:
    rng = random.Random(3)
    texts = ["".join(rng.choice(f"{marker}x") for _ in range(rng.randrange(12))) for _ in range(400)] + [marker, f"{marker}x"]
    index = TokenIndex([text.encode() for text in texts], lambda token_id: False)
    for state in {"", *(marker[:n] for n in range(1, len(marker)))}:
        found = set(index.may_cross(marker, state))
        for token_id, text in enumerate(texts):
            _, ended = Markers([marker]).advance(state, text)
            if token_id in found:
                assert ended is not None
            else:
                assert ended is None or not ended[1]
        assert found


def test_markers_in_pieces_of_any_size() -> None:
    rng = random.Random(2)
    texts = ["<call>", "<c>", "ll>a"]
    for _ in range(2000):
        text = "".join(rng.choice(["<call>", "<c", "<", "a", "l", ">"]) for _ in range(6))
        ends = [(text.find(marker) + len(marker), i) for i, marker in enumerate(texts) if marker in text]
        for size in range(1, 5):
            markers, state, seen = Markers(texts), START, 0
            found = None
            while found is None and seen < len(text):
                state, found = markers.advance(state, text[seen : seen + size])
                seen += size
            if not ends:
                assert found is None
            else:
                assert found is not None
                assert found == (min(ends)[1], text[min(ends)[0] : seen])
