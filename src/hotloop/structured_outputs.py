"""StructuredOutputsParams: the form that an answer must have, checked for shape at construction. Names are vLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotloop.errors import InvalidRequestError

MAX_SPEC_CHARS = 1 << 16  # every choice of a request takes it to the engine
MAX_CHOICE_TEXTS = 10_000
WHITE_SPACE = " \t\r\n"  # may come before what counts at the beginning of an answer only: thinking, and calls of some formats

_OFFERED = ("json", "regex", "choice", "grammar", "json_object")
_KINDS = (*_OFFERED, "calls")  # the last is made of a chat's tools


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call: ``begin``, JSON that ``schema`` (its text) describes, ``end``. called: the name of the schema in messages."""

    begin: str
    schema: str
    end: str
    called: str


@dataclass(frozen=True, slots=True)
class Trigger:
    """``text`` within free text begins a call. stands_for: the beginning of a call that it takes the place of."""

    text: str
    stands_for: str


@dataclass(frozen=True, slots=True)
class CallsForm:
    """An answer that is calls of tools, or free text with calls in it; `text/tools` makes them.

    forms: of the calls. opening, closing: around each, in pieces; a piece that is the text of a control token stands for it.
    separator: between calls. triggers: free text goes up to one of these; then comes a call. at_start: triggers count only at
    the beginning of the answer, after white space, and after such calls the answer ends. must: there is no free text. many:
    there may be several calls. content_schema: instead of free text, JSON that this describes.
    """

    forms: tuple[CallForm, ...]
    opening: tuple[str, ...]
    closing: tuple[str, ...]
    separator: str
    triggers: tuple[Trigger, ...]
    at_start: bool
    must: bool
    many: bool
    content_schema: str | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        """What tells calls from free text."""
        return (*self.opening, *self.closing, *(trigger.text for trigger in self.triggers))


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one of: json: a JSON schema, as a mapping or its text, of which the text is kept. regex: what the whole answer
    matches. choice: texts of which the answer is one. grammar: in Lark's syntax or in GBNF. json_object: any JSON object.

    disable_any_whitespace: no optional white space between the parts of JSON; without it a space, or a line end and an
    indent, may stand wherever JSON allows them. finish_within: of json and json_object; in the last so many tokens that
    max_tokens allows, strings, arrays, objects and numbers are closed as soon as the form lets them. calls: made of the tools
    of a conversation, not by users. called: the name of the form in messages, if it came under another one.

    Raises: InvalidRequestError naming the field. Whether a schema, regex or grammar can be enforced is found out when it is
    compiled, before the request runs.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    finish_within: int | None = None
    calls: CallsForm | None = None
    called: str = field(default="", compare=False, repr=False)

    @property
    def name(self) -> str:
        """Of the form, for messages."""
        (kind,) = self._given()
        return self.called or f"structured_outputs.{kind}"

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs has {' and '.join(given) or 'nothing'}; give exactly one of {', '.join(_OFFERED)}"
            )
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool | None):
                raise InvalidRequestError(f"{name} is {getattr(self, name)!r:.60}; it must be true or false")
        within = self.finish_within
        if within is not None and (type(within) is not int or not 1 <= within < 2**63):
            raise InvalidRequestError(f"finish_within is {within!r:.60}; it must be a number of tokens, 1 to 2^63 - 1")
        beside_calls = self.calls is not None and self.calls.content_schema is not None
        if within is not None and self.json is None and not self.json_object and not beside_calls:
            raise InvalidRequestError("finish_within is given without json or json_object; leave it out")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.name, self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choice_texts(self.choice))
        for name in ("json", "regex", "grammar"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))

    def _given(self) -> list[str]:
        """The kinds that say anything: json_object says nothing by False."""
        return [k for k in _KINDS if getattr(self, k) is not None and not (k == "json_object" and self.json_object is False)]


def _schema_text(name: str, schema: object) -> str:
    """JSON with the keys in their order, which is the order of the answer's properties."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f"{name} is {schema!r:.60}; it must be a JSON schema: an object")
        return schema if isinstance(schema, str) else json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"{name} is no JSON schema: {error}") from None


def _choice_texts(texts: object) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise InvalidRequestError(f"choice is {texts!r:.60}; it must be a list of texts, at least one")
    if len(texts) > MAX_CHOICE_TEXTS:
        raise InvalidRequestError(f"choice has {len(texts)} texts; {MAX_CHOICE_TEXTS} are allowed")
    for text in texts:
        _check_text("choice", text)
    if sum(map(len, texts)) > MAX_SPEC_CHARS:
        raise InvalidRequestError(f"choice has {sum(map(len, texts))} characters; {MAX_SPEC_CHARS} are allowed")
    return tuple(texts)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise InvalidRequestError(f"{name} holds {text!r:.60}; it must be a text that is not empty")
    if len(text) > MAX_SPEC_CHARS:
        raise InvalidRequestError(f"{name} has {len(text)} characters; {MAX_SPEC_CHARS} are allowed")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidRequestError(f"{name} holds a lone surrogate, which no text has")
