"""What each form allows, token by token, on both families of tokenizers; and what cannot be enforced is refused."""

import json
import random
import re
import threading
from typing import Any

import numpy as np
import pytest

from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.sampling import grammar
from hotloop.sampling.closing import Closing
from hotloop.sampling.grammar import GrammarCompiler, GrammarConstraint
from hotloop.structured_outputs import StructuredOutputsParams
from hotloop.text.tokenizer import Tokenizer
from tiny_tokenizer import tokenizer_metadata

VOCAB_SIZE = 320


def tokenizer_of(family: str) -> Tokenizer:
    metadata = tokenizer_metadata(VOCAB_SIZE, sentencepiece=family != "byte level")
    if family == "leading space":
        metadata["tokenizer.ggml.add_space_prefix"] = True
    return Tokenizer.from_metadata(metadata)


@pytest.fixture(scope="module", params=["byte level", "sentencepiece", "leading space"])
def family(request: pytest.FixtureRequest) -> tuple[Tokenizer, GrammarCompiler]:
    tokenizer = tokenizer_of(request.param)
    return tokenizer, GrammarCompiler(lambda: tokenizer)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = tokenizer_of("byte level")
    return GrammarCompiler(lambda: tokenizer)


def form(**fields: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**fields)


def allowed(constraint: GrammarConstraint, output: list[int]) -> set[int]:
    mask = np.full(VOCAB_SIZE // 32 + 2, 0xFFFFFFFF, np.uint32)
    constraint.sync(output)
    constraint.fill_mask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def byte_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Of each byte the token that is only that byte."""
    of_byte = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size)) if not tokenizer.is_special(i)}
    return [of_byte[bytes([b])] for b in text.encode()]


def accepts(tokenizer: Tokenizer, compiler: GrammarCompiler, spec: StructuredOutputsParams, text: str) -> bool:
    """Whether the text is a whole answer, in tokens of single bytes and as the tokenizer writes it."""
    stop = next(iter(tokenizer.eos_token_ids))
    results = set()
    for ids in (byte_tokens(tokenizer, text), tokenizer.encode("e" + text, add_special=False)[1:]):
        if b"".join(map(tokenizer.token_bytes, ids)) != text.encode():
            continue  # a token of the text's beginning goes back to the "e"
        try:
            results.add(stop in allowed(compiler.compile(spec).start([stop]), ids))
        except HotloopError:
            results.add(False)
    assert len(results) == 1
    return results.pop()


def string(**schema: Any) -> StructuredOutputsParams:
    return form(json={"type": "string", **schema})


MAX_FLOAT = 1.7976931348623157e308
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
TWO_FIELDS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}
CASES: list[tuple[StructuredOutputsParams, list[str], list[str]]] = [
    (form(regex="[a-z]+ [a-z]+"), ["the one", "a b"], ["the", "the ", " a b", "a  b"]),  # known fault B75
    (form(regex=r"^\d{2}/\w$"), ["12/a", "00/_"], ["12/é", "১২/a", "123/a"]),  # known fault B135: ASCII
    (form(choice=["yes", "no", "né \U0001F600\n/\"", "yes and no"]), ["yes", "no", "né \U0001F600\n/\"", "yes and no"],
     ["ye", "yesno", "", "YES"]),
    (form(grammar='start: "a" b+\nb: /[0-9]/'), ["a1", "a12"], ["a", "1"]),
    (form(grammar='root ::= item ("," item)*\nitem ::= [0-9]+ | "(" root ")"'), ["1", "1,(2,(3))"], ["(1", "1,"]),
    (form(grammar="root ::= [\U0001F600-\U0001F64F]+"), ["\U0001F600", "\U0001F600\U0001F64F"], ["a", ""]),  # known fault B73
    (form(json_object=True), ['{"a": [1, {"b": null}]}', "{}"], ["[1]", "1", '{"a": 1} ']),
    # known fault B68: a code point is a unit, however it is written; no control characters, no lone surrogates
    (string(maxLength=2), ['""', r'"\""', r'"\\\n"', '"\U0001F600\U0001F600"', r'"\ud83d\ude00a"', r'"\u0041"'],
     ['"abc"', '"\n"', '"a', r'"\ud83d"', r'"\ud83d\ude00ab"', r'"\x"']),
    (string(pattern="^[a-z]+$", maxLength=3), ['"abc"', '"a"'], ['"abcd"', '""', '"A"']),  # known fault B69
    (string(pattern=r"^\d$"), ['"5"'], ['"১"', '"55"']),  # known fault B135
    # a fraction of a second ends, wherever the schema stands; constants are as they are
    (form(json={"anyOf": [{"items": {"$ref": "#/$defs/t"}, "type": "array"}, {"const": {"format": "time"}}],
                "$defs": {"t": {"type": "string", "format": "date-time"}}}),
     ['["2024-02-03T11:12:13.123456789+01:30"]', '["2024-02-03T11:12:13Z"]', '{"format": "time"}'],
     ['["2024-02-03T11:12:13.1234567890+01:30"]', '["2024-02-03T11:12:13.1234567890123456Z"]']),
    (string(format="time"), ['"11:12:13.123456789-01:30"'], ['"11:12:13.1234567890-01:30"', '"11:12"']),
    (string(format="time", maxLength=9), ['"11:12:13Z"'], ['"11:12:13.1Z"']),
    (form(json={"type": "integer", "maximum": 20_000_000_000}), ["20000000000", "-5"], ["20000000001", "01"]),  # B65
    # known fault B65: bounds of an int64, a uint64, a float64, wherever they stand; enumerated numbers have no need of them
    (form(json=INT64), ["-5", f"{-(2**62)}"], [f"{2**63}", "1.5"]),
    (form(json={"type": ["integer", "null"], "minimum": 0, "maximum": 2**64 - 1}), ["null", f"{2**62}"], ["-1", f"{2**64}"]),
    (form(json={"type": "number", "minimum": -MAX_FLOAT, "maximum": MAX_FLOAT}), ["-0.5", "12"], ["null", "-1" + "0" * 20]),
    (form(json={"$defs": {"i": INT64}, "items": {"$ref": "#/$defs/i"}, "type": "array"}), ["[1,-5]"], ["[true]", f"[{2**63}]"]),
    (form(json={"enum": [1e22, 5], "maximum": 1e23}), ["1" + "0" * 22, "5"], ["6"]),
    (form(json={"enum": [1024 - 2**63, 2**62]}), [f"{1024 - 2**63}", f"{2**62}"], [f"{2**62 + 1}"]),
    (form(json={"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 7}),
     [f"{2**53 + 4}"], [f"{2**53}", f"{2**53 + 8}"]),
    (form(json={"type": "array", "uniqueItems": False, "items": {"type": "null"}}), ["[null, null]"], ["[1]"]),
    (form(json={"enum": ["a", 1, None, [2]]}), ['"a"', "1", "null", "[2]"], ['"b"', "2"]),
    (form(json=TWO_FIELDS), ['{"a":1}', '{"a": 1, "b": "x"}', '{\n  "a": 1\n}', '{"a":1,"c":2}'],
     ['{"b":1}', '{"a":"1"}', '{"a":1', '{  "a":1}', '{"a":1,"forecast":"x}']),
    # known faults B70, B135: white space has bounds between any two tokens
    (form(json=TWO_FIELDS), ['{"a"\n' + " " * 16 + ":1}", '{ "a" : 1 }'],
     ['{"a"\n' + " " * 17 + ":1}", '{"a": \n1}', '{"a":1}\n']),
    (form(json=TWO_FIELDS, disable_any_whitespace=True), ['{"a":1,"b":2}'], ['{"a": 1}', '{"a":1, "b":2}', '{\n"a":1}']),
    (form(json={"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
                                                     "additionalProperties": False}}}),
     ["{}", '{"next":{"next":{}}}'], ['{"next":1}', '{"x":1}']),
    (form(grammar='start: "<" %json {"type": "integer", "multipleOf": 7} ">"'), ["<14>"], ["<15>"]),
    # schemas in a grammar are as elsewhere
    (form(grammar='start: a %json {"type": "array", "uniqueItems": false, "$comment": "%json x"}\na: %json {"type": "null"}'),
     ["null[ 1,\n  2]"], ["null[  1]", "null[1, \n2]", "[1]"]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
def test_texts(family: tuple[Tokenizer, GrammarCompiler], case: int) -> None:
    spec, good, bad = CASES[case]
    for text in good:
        assert accepts(*family, spec, text), text
        if spec.json is not None:
            json.loads(text)
    for text in bad:
        assert not accepts(*family, spec, text), text


LEAST = -(2**63)  # an integer that is this one, and the parser goes on for ever
DEADLY = {
    ".const": {"const": LEAST}, ".enum[1]": {"enum": [5, LEAST + 1]}, ".const.a[0]": {"const": {"a": [LEAST + 512]}},
    ".maximum": {"type": "integer", "minimum": LEAST, "maximum": LEAST + 5},
    ".exclusiveMaximum": {"type": "integer", "exclusiveMaximum": -1e300, "minimum": -1e301},
    ".properties.a.anyOf[1].const": {"properties": {"a": {"anyOf": [{}, {"const": LEAST}]}}},
    ".elsewhere.properties.const": {"$ref": "#/elsewhere/properties", "elsewhere": {"properties": {"const": LEAST}}},
}  # fmt: skip
UNENFORCEABLE = {
    "Invalid type: nonsense": form(json={"type": "object", "properties": {"x": {"type": "nonsense"}}}),  # known fault B65
    "unclosed character class": form(regex="(["),
    "unclosed": string(pattern="([a-z"),  # known fault B66
    "look-around": form(regex="(?=a)b"),
    "backreferences": form(regex=r"(a)\1"),
    "not": form(json={"not": {"type": "string"}}),
    "uniqueItems": form(json={"type": "array", "uniqueItems": True}),
    "Unknown format: foo": string(format="foo"),
    "oneOf": form(json={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    "x-guidance": form(json={"type": "string", "format": "foo", "x-guidance": {"lenient": True}}),
    "not present": form(json={"$ref": "http://example.com/schema"}),
    "/nowhere": form(json={"$ref": "#/nowhere"}),
    "Unsatisfiable": form(json={"type": "integer", "minimum": 5, "maximum": 3}),
    "no text is allowed": form(json={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "least common multiple": form(json={"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}),
    "too fine": form(grammar='start: %json {"type": "integer", "multiple\\u004ff": 999983}'),
    "what follows %json": form(grammar="start: %json {"),
    "%json is 5; it must": form(grammar="start: %json 5"),
    "%json is True; it must": form(grammar="start: %json true"),
    # known fault B66: not an answer with another number
    r"json.properties.a.enum\[1\] is 9223372036854775808": form(json={"properties": {"a": {"enum": [5, 2**63]}}}),
    r"json.items.const.x\[0\] is 9007199254740993": form(json={"items": {"const": {"x": [2**53 + 1]}}}),
    "schema.const is 9999999999999999999": form(grammar='start: %json {"const": 9999999999999999999}'),
    **{re.escape(f"json{path} is"): form(json=schema) for path, schema in DEADLY.items()},  # known fault B65
    "json.a.multipleOf is nan": form(json='{"a": {"multipleOf": NaN}}'),
    "schema.multipleOf is nan": form(grammar='start: %json {"multipleOf": NaN}'),
    "no rule 'root'": form(grammar="Start ::= [a]"),
    'unknown name: "foo"': form(grammar="start: foo"),
    "nested": form(grammar="start: " + "(" * 60_000),
    "ends with a backslash": form(regex="a\\"),
    "too large": form(json={"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {"const": i}}} for j in range(4)]}
                                      for i in range(12)]}),
}  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["masks", "no masks"])
def either_compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    tokenizer = tokenizer_of("byte level")
    return GrammarCompiler(lambda: tokenizer, makes_masks=request.param)


def test_what_can_be_enforced_is_not_refused(either_compiler: GrammarCompiler) -> None:
    for spec, _, _ in CASES:
        either_compiler.compile(spec)


@pytest.mark.parametrize("reason", UNENFORCEABLE)
def test_what_cannot_be_enforced_is_refused_with_the_reason(
    either_compiler: GrammarCompiler, reason: str
) -> None:  # known faults B65, B66
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        either_compiler.compile(UNENFORCEABLE[reason])
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_only_text_is_allowed_and_an_end_only_where_the_form_is_complete(
    compiler: GrammarCompiler,
) -> None:  # known faults B72, B73
    tokenizer = tokenizer_of("byte level")
    special = {i for i in range(VOCAB_SIZE) if tokenizer.is_special(i)}
    stops = {*tokenizer.eos_token_ids, ord("x"), VOCAB_SIZE + 3}
    assert len(tokenizer.eos_token_ids) == 2
    constraint = compiler.compile(form(regex="a[a-z]{1,2}")).start(stops)
    letters = set(range(ord("a"), ord("z") + 1))
    for output, complete in ([], False), ([97], False), ([97, 98], True), ([97, 98, 99], True):
        ids = allowed(constraint, output)
        assert stops <= ids if complete else not stops & ids
        assert not ids & (special - stops)
        assert not {i for i in ids - stops if i >= 256 and tokenizer.token_bytes(i) == b""}
        assert ids & letters - stops == (set() if len(output) == 3 else {97} if not output else letters - stops)
    assert constraint.is_complete


def test_no_control_token_is_allowed_where_its_text_is(
    family: tuple[Tokenizer, GrammarCompiler],
) -> None:  # known fault B73
    tokenizer, compiler = family
    special = {i for i in range(VOCAB_SIZE) if tokenizer.is_special(i)}
    texts = [tokenizer.token_bytes(i).decode() for i in special]
    assert "<|im_end|>" in texts
    for spec, begin, end in ((form(regex=r"(.|\n)*"), "", ""), (string(), '"', '"')):
        for text in texts:
            assert accepts(tokenizer, compiler, spec, begin + text + end)
        constraint = compiler.compile(spec).start()
        for output in (begin, begin + "a", begin + "<|"):
            assert not special & allowed(constraint, byte_tokens(tokenizer, output))


def test_a_constraint_is_a_fold_over_the_output(compiler: GrammarCompiler) -> None:
    """However it came to an output, it allows the same; after an impossible one it says so."""
    spec = form(json=TWO_FIELDS)
    grammar = compiler.compile(spec)
    text = list(b'{"a": 12, "b": ["x"]}')
    masks = [allowed(grammar.start([1]), text[:i]) for i in range(len(text) + 1)]
    one = grammar.start([1])
    for _ in range(300):
        length = int(np.random.default_rng(len(masks)).integers(len(text) + 1))
        assert allowed(one, text[:length]) == masks[length]
        masks.append(masks[length])
    one = grammar.start([1])
    for i, token_id in enumerate(text):
        assert allowed(one, text[:i]) == masks[i]
        assert not one.is_complete
        one.push(token_id)
    assert one.is_complete
    one.rollback(1)
    assert not one.is_complete
    assert allowed(one, text[:-1]) == masks[len(text) - 1]
    with pytest.raises(HotloopError, match="cannot go on"):
        one.push(ord("x"))
    with pytest.raises(HotloopError, match="cannot go on"):
        allowed(one, text[:-1])
    assert not one.is_complete


def test_forced_text_is_written_in_the_tokens_of_the_tokenizer(
    family: tuple[Tokenizer, GrammarCompiler],
) -> None:  # known fault B74
    tokenizer, compiler = family
    constraint = compiler.compile(form(regex="x the he")).start()
    output: list[int] = []
    while not constraint.is_complete:
        (token_id,) = allowed(constraint, output)
        constraint.push(token_id)
        output.append(token_id)
    assert b"".join(map(tokenizer.token_bytes, output)) == b"x the he"
    assert len(output) < len("x the he")


def test_compiled_grammars_are_kept_and_old_ones_dropped() -> None:
    loaded = []
    tokenizer = tokenizer_of("byte level")

    def load() -> Tokenizer:
        loaded.append(1)
        return tokenizer

    compiler = GrammarCompiler(load)
    specs = [form(regex=f"a{i}") for i in range(20)]
    threads = [threading.Thread(target=compiler.compile, args=(spec,)) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 1
    kept = [spec for spec in specs if compiler.cached(spec) is not None]
    assert len(kept) == 16
    assert compiler.compile(kept[0]) is compiler.cached(kept[0])
    for spec in specs:
        compiler.compile(spec)
    assert compiler.cached(specs[0]) is None
    assert compiler.cached(specs[-1]) is not None


def test_a_grammar_that_many_constraints_shared_is_compiled_again() -> None:
    """Its lexer does not grow for ever, and no answer becomes too complex by what others wrote."""
    tokenizer = tokenizer_of("byte level")
    compiler = GrammarCompiler(lambda: tokenizer)
    spec = string(maxLength=50_000)
    grammars = set()
    for i in range(200):
        grammar = compiler.compile(spec)
        grammars.add(grammar)
        constraint = grammar.start()
        constraint.push(ord('"'))
        for _ in range(500):
            constraint.push(ord("a") + i % 20)
    assert len(grammars) == 4


def test_an_answer_becomes_too_complex_by_itself_only() -> None:
    tokenizer = tokenizer_of("byte level")
    compiler = GrammarCompiler(lambda: tokenizer)
    spec = form(regex="(.*a.{14})+")  # every text is a state of its own
    shared, rng = compiler.compile(spec), random.Random(1)
    answers: list[list[int]] = [[] for _ in range(6)]
    constraints = [shared.start() for _ in answers]
    for _ in range(800):
        for answer, constraint in zip(answers, constraints, strict=True):
            token_id = ord(rng.choice("ab"))
            assert token_id in allowed(constraint, answer)
            constraint.push(token_id)
            answer.append(token_id)
    assert compiler.compile(spec) is not shared, "whoever comes later is not to find it full"
    (full,) = shared._grammars
    assert full.accepts([ord("b")]), "what may follow a marker is asked of it still"


@pytest.mark.parametrize("regex", [r"(\w+ ?){0,2000}", "((a{0,20}){0,10}){0,10}"])
def test_an_answer_is_as_complex_where_it_is_resumed_as_where_it_goes_on(regex: str) -> None:
    tokenizer = tokenizer_of("byte level")
    output = [ord(c) for c in ("word aa " if "w" in regex else "aaaaaaaa") * 80]
    going_on, resumed = (GrammarCompiler(lambda: tokenizer).compile(form(regex=regex)).start() for _ in range(2))
    masks = [allowed(going_on, output[:length]) for length in range(len(output) + 1)]
    assert allowed(resumed, output) == masks[-1]
    assert output[0] in masks[-1]


def test_more_properties_than_answers_can_choose_from_are_refused_before(compiler: GrammarCompiler) -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(600)}
    compiler.compile(form(json={"type": "object", "properties": properties, "required": [*properties]}))
    with pytest.raises(InvalidRequestError, match=r"structured_outputs.json cannot .* items; .* 400 are no problem"):
        compiler.compile(form(json={"type": "object", "properties": properties}))


def test_an_ambiguous_grammar_ends_its_request_before_it_takes_long(compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(form(grammar='start: start start start | start start | "x" | "x" "x"?')).start()

    def go_on() -> None:
        for i in range(2000):
            allowed(constraint, [ord("x")] * i)

    with pytest.raises(HotloopError, match="items"):
        go_on()


def test_a_draft_that_is_too_complex_leaves_no_trace(compiler: GrammarCompiler) -> None:
    """The parser cannot take its error back."""
    form_ = compiler.compile(form(grammar='start: e "y"?\ne: e e | e e e | "x"'))
    drafting, plain = form_.start(), form_.start()
    x, y = ord("x"), ord("y")
    output: list[int] = []
    while drafting.push_draft(x):
        output.append(x)
    assert 50 < len(output) < 500
    for constraint in (plain, drafting):
        constraint.sync(output)
        constraint.push(y)
    assert drafting.is_complete
    with pytest.raises(InvalidRequestError, match="items"):
        form_.start().sync([*output, x])


def test_a_step_does_not_wait_for_what_is_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of("byte level")
    compiler = GrammarCompiler(lambda: tokenizer)
    compiler.token_index()
    is_asking, go_on = threading.Event(), threading.Event()

    def closing(written: Any) -> Closing:
        is_asking.set()
        assert go_on.wait(30)
        return Closing(written)

    monkeypatch.setattr(grammar, "Closing", closing)
    compiling = threading.Thread(target=compiler.compile, args=(form(json_object=True, finish_within=5),))
    compiling.start()
    assert is_asking.wait(30)
    asking = threading.Thread(target=compiler.token_index)
    asking.start()
    asking.join(10)
    waited = asking.is_alive()
    go_on.set()
    compiling.join()
    assert not waited
