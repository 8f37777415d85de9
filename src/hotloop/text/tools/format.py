"""ToolFormat: what a family of models sees of tools and how it writes calls. One file for each; `formats.py` chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from hotloop.request import MessagePart
from hotloop.structured_outputs import CallsForm
from hotloop.text.tools.use import ToolUse

Conversation: TypeAlias = Sequence[Mapping[str, Any]]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class CallParser(Protocol):
    """Splits an answer that arrives in pieces of any size into content and calls. Pieces do not change what comes out, and
    text is held back only while it may become a part of a call; what turns out not to be one is content."""

    @property
    def has_calls(self) -> bool:
        """Whether there is a call and none is cut short."""
        ...

    def feed(self, text: str) -> list[MessagePart]:
        """What became certain."""
        ...

    def finish(self) -> list[MessagePart]:
        """The end of the answer: what was held back."""
        ...


class ToolFormat(Protocol):
    """name: what --tool-format calls it."""

    name: str

    def fits(self, template_source: str) -> bool:
        """Whether a model with this chat template writes calls in this way."""
        ...

    def conversations(self, messages: Conversation, tools: Tools | None) -> Sequence[tuple[Conversation, Tools | None]]:
        """Messages and tools as the chat template takes them; if it refuses them, the next. messages: see `messages.py`."""
        ...

    def form(self, use: ToolUse) -> CallsForm:
        """What an answer may be: a call if it must be one, else free text in which each call keeps to its schema."""
        ...

    def parser(self, use: ToolUse) -> CallParser: ...
