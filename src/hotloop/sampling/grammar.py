"""Structured output: which tokens may come next, so that the answer keeps to a schema, regex, choice or grammar.

llguidance parses; this decides what goes in (bytes of the tokens, limits) and what ends an answer.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hotloop.errors import InvalidRequestError
from hotloop.sampling.constraint import Mask
from hotloop.sampling.grammar_source import GrammarSource, grammar_source
from hotloop.sampling.schema_fault import fault_path
from hotloop.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_log = logging.getLogger(__name__)

_MAX_GRAMMARS = 16  # kept compiled
# The constraints of a grammar share its lexer, which remembers the states it was in. So few that they do not fill it together:
# whether an answer becomes too complex must be up to itself.
_MAX_CONSTRAINTS = 64
_MAX_LEXER_STATES = 50_000  # 1 to 2 kB each
# Steps of a parser are quadratic in the items of a row. Schemas give long but simple rows, one item for each property that
# may come next; of a grammar that anybody may write, 500 keep the slowest step near 15 ms.
_MAX_ROW_ITEMS_OF_SCHEMAS, _MAX_ROW_ITEMS_OF_GRAMMARS = 2000, 500
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

    def __init__(self, load_tokens: Callable[[], TokenBytes]) -> None:
        """load_tokens: called once, at the first use, which takes up to a few seconds."""
        self._load_tokens = load_tokens
        self._lock = threading.Lock()
        self._table_lock = threading.Lock()
        self._table: LLTokenizer | None = None
        self._grammars: OrderedDict[StructuredOutputsParams, Grammar] = OrderedDict()

    def cached(self, spec: StructuredOutputsParams) -> Grammar | None:
        """What is compiled already and not worn out."""
        with self._lock:
            grammar = self._grammars.pop(spec, None)
            if grammar is None or grammar.num_started >= _MAX_CONSTRAINTS:
                return None
            self._grammars[spec] = grammar  # the latest used are last
            return grammar

    def compile(self, spec: StructuredOutputsParams) -> Grammar:
        """Raises InvalidRequestError with the reason if the grammar cannot be enforced."""
        grammar = self.cached(spec)
        if grammar is None:
            grammar = self._compile(spec)
            with self._lock:
                self._grammars[spec] = grammar
                while len(self._grammars) > _MAX_GRAMMARS:
                    self._grammars.popitem(last=False)
        return grammar

    def _compile(self, spec: StructuredOutputsParams) -> Grammar:
        source = grammar_source(spec)
        matcher = self._matcher(source)
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds out whether there is any beginning
        if matcher.is_error():
            reason = _reason(matcher)
            raise InvalidRequestError(f"{spec.name}{self._fault_path(spec, reason)} cannot be enforced: {reason}")
        return Grammar(matcher, self._token_table().eos_token)

    def _matcher(self, source: GrammarSource) -> LLMatcher:
        from llguidance import LLMatcher

        limits = _limits(_MAX_ROW_ITEMS_OF_SCHEMAS if source.is_schema else _MAX_ROW_ITEMS_OF_GRAMMARS)
        return LLMatcher(self._token_table(), source.grammar, log_level=0, limits=limits)

    def _fault_path(self, spec: StructuredOutputsParams, reason: str) -> str:
        """Where in its schema, if it has one."""
        if spec.json is None:
            return ""
        assert isinstance(spec.json, str)

        def fails_alike(schema: Mapping[str, Any]) -> bool:
            try:
                matcher = self._matcher(grammar_source(StructuredOutputsParams(json=dict(schema))))
            except InvalidRequestError:
                return False
            return matcher.is_error() and _reason(matcher) == reason

        return fault_path(json.loads(spec.json), fails_alike)

    def _token_table(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        with self._table_lock:
            if self._table is None:
                self._table = LLTokenizer(TokenizerWrapper(_TokenTable(self._load_tokens())))
            return self._table


def _limits(max_row_items: int) -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=max_row_items, max_lexer_states=_MAX_LEXER_STATES, initial_lexer_fuel=300_000,
        step_lexer_fuel=100_000, max_grammar_size=200_000, verbose_errors=False,
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

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        """matcher: at the beginning; copies of it share what they find out about the grammar's lexemes."""
        self.num_started = 0
        self._matcher = matcher
        self._vocab_size = vocab_size

    def start(self, stop_token_ids: Collection[int] = ()) -> GrammarConstraint:
        """The constraint of one request. stop_token_ids: end it, and are allowed where the grammar is complete only."""
        self.num_started += 1
        return GrammarConstraint(self._matcher, self._vocab_size, stop_token_ids)


class GrammarConstraint:
    """The constraint that a grammar is. Implements `Constraint`."""

    def __init__(self, beginning: LLMatcher, vocab_size: int, stop_token_ids: Collection[int]) -> None:
        self._beginning = beginning
        self._matcher = beginning.deep_copy()
        self._num_words = vocab_size // 32 + 1  # of vocab_size tokens and the end
        self._end_word, self._end_bit = vocab_size // 32, np.uint32(1 << vocab_size % 32)
        stops: Mask = np.zeros(max([vocab_size, *stop_token_ids]) // 32 + 1, np.uint32)
        for token_id in stop_token_ids:
            stops[token_id // 32] |= np.uint32(1 << token_id % 32)
        self._stop_words = np.flatnonzero(stops)
        self._stop_bits = stops[self._stop_words]
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_pushed = 0

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def sync(self, output_token_ids: Sequence[int], draft_token_ids: Sequence[int] = ()) -> None:
        num_output = len(output_token_ids)
        excess = self._num_pushed - num_output - len(draft_token_ids)
        if excess > 0 and self._matcher.is_error():  # because of drafts that are wrong: an error cannot be taken back
            self._matcher, self._num_pushed = self._beginning.deep_copy(), 0
        elif excess > 0:
            self.rollback(excess)
        for token_id in output_token_ids[self._num_pushed :]:
            self.push(token_id)
        for token_id in draft_token_ids[self._num_pushed - num_output :]:
            self.push(token_id)

    def fill_mask(self, mask: Mask) -> bool:
        mask[self._num_words :] = 0
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, self._num_words * mask.itemsize)
        self._check()
        may_end = mask[self._end_word] & self._end_bit
        mask[self._end_word] &= ~self._end_bit
        if may_end:
            mask[self._stop_words] |= self._stop_bits
        else:
            mask[self._stop_words] &= ~self._stop_bits
        return True

    def push(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._check()
        self._num_pushed += 1

    def push_draft(self, token_id: int) -> bool:
        if token_id in self._stop_token_ids or not self._matcher.try_consume_tokens([token_id]):
            return False
        self._num_pushed += 1
        if not self._matcher.is_stopped():
            return True
        self.rollback(1)
        return False

    def forced_token_ids(self) -> list[int]:
        return [] if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` ids pushed."""
        self._matcher.rollback(num_tokens)
        self._check()
        self._num_pushed -= num_tokens

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequestError(f"the answer cannot go on within its structured_outputs: {_reason(self._matcher)}")
