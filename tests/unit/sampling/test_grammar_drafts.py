"""Drafts and forced tokens of a grammar: looking ahead and taking back leaves no trace."""

import random

import numpy as np
import pytest

from hotloop.errors import InvalidRequestError
from hotloop.sampling.grammar import GrammarCompiler, GrammarConstraint
from hotloop.structured_outputs import StructuredOutputsParams
from hotloop.text.tokenizer import Tokenizer
from tiny_tokenizer import tokenizer_metadata

VOCAB_SIZE = 320
STOP = 1
FORMS = [
    StructuredOutputsParams(
        json={
            "type": "object", "required": ["name", "kinds"], "additionalProperties": False,
            "properties": {
                "name": {"type": "string", "maxLength": 4},
                "kinds": {"type": "array", "items": {"enum": ["a the", "b"]}, "maxItems": 3},
            },
        }
    ),
    StructuredOutputsParams(regex="[ab]{2}( the end){1,3}"),
    StructuredOutputsParams(choice=["yes", "no", "not at all"]),
    StructuredOutputsParams(grammar='start: "(" (start | "x") ")"'),
]  # fmt: skip


def compiler_of(*, sentencepiece: bool) -> GrammarCompiler:
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(VOCAB_SIZE, sentencepiece=sentencepiece))
    return GrammarCompiler(lambda: tokenizer)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    """Its tokenizer's first tokens are the bytes."""
    return compiler_of(sentencepiece=False)


def allowed(constraint: GrammarConstraint) -> list[int]:
    mask = np.full(VOCAB_SIZE // 32 + 2, 0xFFFFFFFF, np.uint32)
    assert constraint.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("sentencepiece", [False, True])
@pytest.mark.parametrize("spec", FORMS, ids=range(len(FORMS)))
def test_looking_ahead_leaves_no_trace(spec: StructuredOutputsParams, sentencepiece: bool) -> None:
    """Random walks; beside each a constraint that tries drafts, right and wrong ones, before every token."""
    grammar = compiler_of(sentencepiece=sentencepiece).compile(spec)
    num_accepted = num_refused = num_forced = 0
    for seed in range(12):
        rng = random.Random(seed)
        plain, drafted = grammar.start([STOP]), grammar.start([STOP])
        output: list[int] = []
        while not plain.is_complete and len(output) < 60:
            drafted.sync(output)
            forced = drafted.forced_token_ids() if rng.random() < 0.7 else []
            masks = [allowed(drafted)]
            if forced:
                assert masks[0] == forced[:1], "what is forced is all that is allowed"
                num_forced += 1
            drafts = forced or [rng.choice(masks[0]), *rng.choices(range(VOCAB_SIZE - 1), k=3)]
            num_pushed = 0
            for token_id in drafts:
                if not drafted.push_draft(token_id):
                    num_refused += 1
                    break
                num_pushed += 1
                masks.append(allowed(drafted))
            drawn: list[int] = []
            while len(drawn) < len(masks) and drawn == drafts[: len(drawn)]:
                mask = masks[len(drawn)]
                plain.sync(output, drawn)
                assert mask == allowed(plain)
                agrees = len(drawn) < num_pushed and drafts[len(drawn)] in mask and rng.random() < 0.8
                drawn.append(drafts[len(drawn)] if agrees else rng.choice(mask))
            num_accepted += len(drawn) - 1
            if drawn[-1] == STOP:
                break
            drafted.sync(output, drafts[: len(drawn) - 1])
            drafted.push(drawn[-1])
            output += drawn
            plain.sync(output)
            assert plain.is_complete == drafted.is_complete
    assert num_accepted > 3
    assert num_refused > 3
    assert num_forced > 3 or spec.grammar


def test_a_draft_that_cannot_be_or_that_ends_is_not_pushed(compiler: GrammarCompiler) -> None:
    one = compiler.compile(StructuredOutputsParams(choice=["ab"])).start([STOP])
    for token_id in (STOP, ord("b"), VOCAB_SIZE - 1):
        assert not one.push_draft(token_id)
    before = allowed(one)
    assert one.push_draft(ord("a"))
    assert not one.push_draft(ord("b")), "nothing may follow it"
    one.sync([])
    assert allowed(one) == before
    one.sync([], [ord("a")])
    one.push(ord("b"))
    assert one.is_complete
    assert one.forced_token_ids() == []


def test_an_error_of_a_draft_is_forgotten_with_it(compiler: GrammarCompiler) -> None:
    """The parser's own errors are for ever, so it begins again."""
    one = compiler.compile(StructuredOutputsParams(regex="a{1,5}b")).start([STOP])
    one.sync([ord("a")])
    before = allowed(one)
    assert one.push_draft(ord("a"))
    one._compile_own = None  # it has a lexer of its own already
    one._matcher.consume_token(ord("x"))  # what a limit of the parser would do
    with pytest.raises(InvalidRequestError):
        allowed(one)
    one.sync([ord("a")])
    assert allowed(one) == before
    one.sync([ord("a")], [ord("a")])
    one.push(ord("b"))
    assert one.is_complete
