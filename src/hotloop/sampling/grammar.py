"""Structured output: which tokens may come next, so that the answer keeps to a schema, regex, choice or grammar.

llguidance parses; this decides what goes in (bytes of the tokens, limits) and what ends an answer.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotloop.errors import InvalidRequestError
from hotloop.sampling.closing import Closing
from hotloop.sampling.constraint import Mask
from hotloop.sampling.grammar_source import (
    GrammarSource,
    grammar_source,
    parse_schema,
    schema_source,
    schemas_of,
    triggered_sources,
)
from hotloop.sampling.markers import Markers
from hotloop.sampling.schema_fault import fault_path
from hotloop.sampling.stages import Form, Formed, Free
from hotloop.sampling.token_index import TokenIndex
from hotloop.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_log = logging.getLogger(__name__)

_MAX_FORMS = 16  # kept compiled
# The constraints of a grammar share its lexer, which remembers the states it was in: so few that they hardly fill it together.
_MAX_CONSTRAINTS = 64
_MAX_LEXER_STATES = 50_000  # 1 to 2 kB each
# Work for a mask and the tokens up to the next one: some 30 ms at worst, and ordinary forms do not come near. Of an answer that
# is resumed, many tokens come at once: masks are computed between them, for the work that they give.
_LEXER_FUEL = 1_000_000
_MAX_TOKENS_BETWEEN_MASKS = 4
# Steps of a parser are quadratic in the items of a row. Schemas give long but simple rows, one item for each property that
# may come next; of a grammar that anybody may write, 500 keep the slowest step near 15 ms.
_MAX_ROW_ITEMS_OF_SCHEMAS, _MAX_ROW_ITEMS_OF_GRAMMARS = 2000, 500
_MAX_CIRCLE = 16  # tokens
_MAX_BEGINNING = 4  # bytes
_MAX_MESSAGE = 300


class TokenBytes(Protocol):
    """The part of a tokenizer that structured output needs."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def adds_leading_space(self) -> bool: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...
    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...


class GrammarCompiler:
    """Compiles what requests ask for, and keeps the latest. Thread-safe; `compile` may take a second."""

    def __init__(self, load_tokens: Callable[[], TokenBytes], *, makes_masks: bool = True) -> None:
        """load_tokens: called once, at the first use, which takes up to a few seconds. makes_masks: else it is only asked what
        can be enforced; its table, during which Python stands still, takes half the time and a third of the memory."""
        self._load_tokens = load_tokens
        self._makes_masks = makes_masks
        self._lock = threading.Lock()
        self._table_lock = threading.Lock()
        self._made: tuple[LLTokenizer, TokenIndex] | None = None
        self._ends: Closing | None = None
        self._forms: OrderedDict[StructuredOutputsParams, Form] = OrderedDict()

    def cached(self, spec: StructuredOutputsParams) -> Form | None:
        """What is compiled already and not worn out."""
        with self._lock:
            form = self._forms.pop(spec, None)
            if form is None or form.is_worn:
                return None
            self._forms[spec] = form  # the latest used are last
            return form

    def compile(self, spec: StructuredOutputsParams) -> Form:
        """Raises InvalidRequestError with the reason if it cannot be enforced."""
        form = self.cached(spec)
        if form is None:
            form = self._form(spec)
            with self._lock:
                self._forms[spec] = form
                while len(self._forms) > _MAX_FORMS:
                    self._forms.popitem(last=False)
        return form

    @property
    def is_loaded(self) -> bool:
        return self._made is not None

    def token_index(self) -> TokenIndex:
        """Loads the tokens if that has not been done."""
        return self._tables()[1]

    def _form(self, spec: StructuredOutputsParams) -> Form:
        calls = spec.calls
        _, index = self._tables()
        if calls is None or calls.must or calls.content_schema is not None:
            grammar = self._compile(spec, grammar_source(spec, index.control_ids))
            return Form(Formed(grammar), [grammar], index, () if calls is None else calls.markers)
        sources = triggered_sources(spec, index.control_ids)
        grammars = [self._compile(spec, source) for source in sources]
        free = Free(Markers([trigger.text for trigger in calls.triggers], at_start=calls.at_start), index)
        free.follow = [Formed(grammar, free if calls.many and not calls.at_start else None) for grammar in grammars]
        return Form(free, grammars, index, calls.markers)

    def _compile(self, spec: StructuredOutputsParams, source: GrammarSource) -> Grammar:
        matcher = self._matcher(source)
        if matcher.is_error():
            raise InvalidRequestError(self._why_not(spec, _reason(matcher)))
        closing = None
        if spec.finish_within is not None and self._makes_masks:
            closing = spec.finish_within, self._closing()
        return Grammar(matcher, self._tables()[0].eos_token, partial(self._matcher, source), closing)

    def _matcher(self, source: GrammarSource) -> LLMatcher:
        """At the beginning; with an error if it cannot be enforced."""
        from llguidance import LLMatcher

        limits = _limits(_MAX_ROW_ITEMS_OF_SCHEMAS if source.is_schema else _MAX_ROW_ITEMS_OF_GRAMMARS)
        matcher = LLMatcher(self._tables()[0], source.grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds out whether there is any beginning
            begun = self._begun(matcher)
            return begun if begun.is_error() else matcher
        return matcher

    def _begun(self, matcher: LLMatcher) -> LLMatcher:
        """After what every answer begins with: what may come then, such as any of an object's properties, may be too much."""
        byte_ids = self._tables()[1].byte_ids
        begun = matcher.deep_copy()
        for byte in matcher.deep_copy().compute_ff_bytes()[:_MAX_BEGINNING].decode("latin-1"):
            if byte not in byte_ids or not begun.try_consume_tokens([byte_ids[byte]]) or begun.is_stopped():
                break
            begun.compute_bitmask()
        return begun

    def _why_not(self, spec: StructuredOutputsParams, reason: str) -> str:
        """A message that says which schema is at fault, if it is one, and what inside of it."""
        for name, text in schemas_of(spec):
            schema = parse_schema(text, name)
            at_fault = self._reason(schema)
            if at_fault is not None:
                path = fault_path(schema, partial(self._has_reason, at_fault))
                hint = "; of properties that may be left out, 400 are no problem" if "Current row has" in at_fault else ""
                return f"{name}{path} cannot be enforced: {at_fault}{hint}"
        return f"{spec.name} cannot be enforced: {reason}"

    def _has_reason(self, reason: str, schema: Mapping[str, Any]) -> bool:
        return self._reason(schema) == reason

    def _reason(self, schema: Mapping[str, Any]) -> str | None:
        """Why a schema cannot be enforced; None if it can."""
        matcher = self._matcher(schema_source(dict(schema)))
        return _reason(matcher) if matcher.is_error() else None

    def _closing(self) -> Closing:
        _, index = self._tables()
        with self._table_lock:
            if self._ends is None:
                self._ends = Closing(index.written)
            return self._ends

    def _tables(self) -> tuple[LLTokenizer, TokenIndex]:
        if self._made is not None:  # without the lock: a step asks, and must not wait for what is made under it
            return self._made
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._table_lock:
            if self._made is None:
                tokens = _TokenTable(self._load_tokens())
                slices: list[str] | None = None if self._makes_masks else []  # what makes masks quick; None: the usual
                self._made = LLTokenizer(TokenizerWrapper(tokens), slices=slices), tokens.index()
            return self._made


def _limits(max_row_items: int) -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=max_row_items, max_lexer_states=_MAX_LEXER_STATES, initial_lexer_fuel=_LEXER_FUEL,
        step_lexer_fuel=_LEXER_FUEL, max_grammar_size=200_000, verbose_errors=False,
    )  # fmt: skip


def _reason(matcher: LLMatcher) -> str:
    reason = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
    if reason == "NoExtensionBias":
        return "no text is allowed by it"
    if reason.startswith("oneOf"):
        return "alternatives of oneOf may hold at once, which cannot be excluded; use anyOf"
    if reason.startswith("panic"):
        _log.error("llguidance failed: %s", reason)
        return "the parser failed"
    return reason if len(reason) <= _MAX_MESSAGE else reason[:_MAX_MESSAGE] + " ..."


def _is_exhausted(matcher: LLMatcher) -> bool:
    """Whether the error is that the lexer has no more room, or fuel: then it refuses tokens that the mask has allowed, too."""
    error = matcher.get_error()
    return "lexer error" in error or "doesn't satisfy the grammar" in error


class _TokenTable:
    """What llguidance wants to know of a tokenizer, in its own names.

    Its end token is one that the model does not have, vocab_size: whether it is allowed tells whether the answer may end,
    and which tokens end a request is for the request to say. Special tokens are never text.
    """

    bos_token_id = None

    def __init__(self, tokens: TokenBytes) -> None:
        end = tokens.vocab_size
        self.tokens = [*map(tokens.token_bytes, range(end)), b"<end>"]
        self.special_token_ids = [*filter(tokens.is_special, range(end)), end]
        self.eos_token_id = end
        self._tokenizer = tokens

    def index(self) -> TokenIndex:
        return TokenIndex(self.tokens[:-1], self._tokenizer.is_special)

    def __call__(self, text: str) -> list[int]:
        """Text that can only go on in one way is written in the tokens that the model would use for it."""
        tokenizer = self._tokenizer
        if not tokenizer.adds_leading_space:
            return tokenizer.encode(text, add_special=False)
        ids = tokenizer.encode("\n" + text, add_special=False)
        begin, start = 0, b""
        while start not in (b"\n", b" \n") and begin < len(ids):
            start += tokenizer.token_bytes(ids[begin])
            begin += 1
        return ids[begin:]


class Grammar:
    """A compiled grammar."""

    def __init__(
        self,
        matcher: LLMatcher,
        vocab_size: int,
        compile_again: Callable[[], LLMatcher],
        closing: tuple[int, Closing] | None = None,
    ) -> None:
        """matcher: at the beginning; copies of it share what they find out about the grammar's lexemes. closing: in the last
        so many tokens."""
        self._num_started = 0
        self._is_full = False
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._compile_again = compile_again
        self._closing = closing

    @property
    def is_worn(self) -> bool:
        return self._is_full or self._num_started >= _MAX_CONSTRAINTS

    def accepts(self, token_ids: Sequence[int]) -> bool:
        return self._matcher.deep_copy().try_consume_tokens(list(token_ids)) == len(token_ids)

    def start(self, stop_token_ids: Collection[int] = (), max_tokens: int | None = None) -> GrammarConstraint:
        """The constraint of one request. stop_token_ids: end it, and are allowed where the grammar is complete only.
        max_tokens: that it may have at most, None if nobody knows."""
        self._num_started += 1
        closing = None
        if self._closing is not None and max_tokens is not None:
            closing = max_tokens - self._closing[0], self._closing[1]
        return GrammarConstraint(self._matcher, self._vocab_size, stop_token_ids, self._of_its_own, closing)

    def _of_its_own(self) -> LLMatcher:
        """For a constraint that has found the lexer full of what others wrote: so full, it refuses whatever it is asked."""
        self._is_full = True
        self._matcher = self._compile_again()
        return self._matcher


class GrammarConstraint:
    """The constraint that a grammar is. Implements `Constraint`."""

    def __init__(
        self,
        beginning: LLMatcher,
        vocab_size: int,
        stop_token_ids: Collection[int],
        compile_own: Callable[[], LLMatcher],
        closing: tuple[int, Closing] | None = None,
    ) -> None:
        """compile_own: a beginning that shares nothing. closing: from how many tokens on only what closes JSON is allowed."""
        self._beginning = beginning
        self._compile_own: Callable[[], LLMatcher] | None = compile_own
        self._closing = closing
        self._matcher = beginning.deep_copy()
        self._num_words = vocab_size // 32 + 1  # of vocab_size tokens and the end
        self._end_word, self._end_bit = vocab_size // 32, np.uint32(1 << vocab_size % 32)
        stops: Mask = np.zeros(max([vocab_size, *stop_token_ids]) // 32 + 1, np.uint32)
        for token_id in stop_token_ids:
            stops[token_id // 32] |= np.uint32(1 << token_id % 32)
        self._stop_words = np.flatnonzero(stops)
        self._stop_bits = stops[self._stop_words]
        self._stop_token_ids = frozenset(stop_token_ids)
        self._pushed: list[int] = []
        self._num_since_mask = 0

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def sync(self, output_token_ids: Sequence[int], draft_token_ids: Sequence[int] = ()) -> None:
        num_output = len(output_token_ids)
        excess = len(self._pushed) - num_output - len(draft_token_ids)
        if excess > 0 and self._matcher.is_error():  # because of drafts that are wrong
            self._begin_again(self._pushed[:-excess])
        elif excess > 0:
            self.rollback(excess)
        for token_id in output_token_ids[len(self._pushed) :]:
            self.push(token_id)
        for token_id in draft_token_ids[len(self._pushed) - num_output :]:
            self.push(token_id)

    def fill_mask(self, mask: Mask) -> bool:
        mask[self._num_words :] = 0
        self._ask(lambda: self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, self._num_words * mask.itemsize))
        self._num_since_mask = 0
        may_end = mask[self._end_word] & self._end_bit
        mask[self._end_word] &= ~self._end_bit
        closes = self._closing is not None and len(self._pushed) >= self._closing[0]
        if may_end:
            if closes and len(self._stop_words):
                mask[:] = 0
            mask[self._stop_words] |= self._stop_bits
        else:
            mask[self._stop_words] &= ~self._stop_bits
            if closes and self._closing is not None:
                self._closing[1].restrict(mask, self._pushed[-_MAX_CIRCLE:])
        return True

    def push(self, token_id: int) -> None:
        if self._num_since_mask == _MAX_TOKENS_BETWEEN_MASKS:
            self._num_since_mask = 0
            self._ask(lambda: self._matcher.compute_bitmask())
        self._num_since_mask += 1
        self._ask(lambda: self._matcher.consume_token(token_id))
        self._pushed.append(token_id)

    def push_draft(self, token_id: int) -> bool:
        if token_id in self._stop_token_ids:
            return False
        if not self._matcher.try_consume_tokens([token_id]):
            if self._matcher.is_error():  # the draft is too complex, but need not be what comes
                self._begin_again(self._pushed)
            return False
        self._pushed.append(token_id)
        if not self._matcher.is_stopped():
            return True
        self.rollback(1)
        return False

    def forced_token_ids(self) -> list[int]:
        return [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` ids pushed."""
        self._ask(lambda: self._matcher.rollback(num_tokens))
        del self._pushed[len(self._pushed) - num_tokens :]

    def _begin_again(self, token_ids: Sequence[int]) -> None:
        """With these pushed: a matcher's error cannot be taken back."""
        self._matcher, self._pushed = self._beginning.deep_copy(), []
        for token_id in token_ids:
            self.push(token_id)

    def _ask(self, ask: Callable[[], object]) -> None:
        """Of the matcher, and again of one with a lexer of its own where it is the shared one that is full: whether an answer
        becomes too complex is up to itself."""
        ask()
        if self._matcher.is_error() and self._compile_own is not None and _is_exhausted(self._matcher):
            self._beginning, self._compile_own = self._compile_own(), None
            self._begin_again(self._pushed)
            ask()
        if self._matcher.is_error():
            raise InvalidRequestError(f"the answer cannot go on within its structured_outputs: {_reason(self._matcher)}")
