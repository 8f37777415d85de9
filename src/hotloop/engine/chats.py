"""Chats: conversations as prompts, with what their answers are made of: content, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hotloop.errors import ContextLengthError, InvalidRequestError
from hotloop.request import Thinking
from hotloop.sampling_params import SamplingParams
from hotloop.structured_outputs import CallsForm, StructuredOutputsParams
from hotloop.text.chat_template import ChatTemplate, encode_chat, plain_messages
from hotloop.text.message_parser import MessageForm
from hotloop.text.thinking import thinking_after, thinks
from hotloop.text.tokenizer import Tokenizer
from hotloop.text.tools.format import ToolFormat
from hotloop.text.tools.formats import format_for
from hotloop.text.tools.messages import with_call_objects
from hotloop.text.tools.use import ToolUse, tool_use

MAX_LONG_CHARS = 1_000_000  # of a text that may be longer than the context

Message: TypeAlias = Mapping[str, Any]

_OWN_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "max_tokens", "max_chars", "tokenizer", "template", "self"}
)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to answer, a kind of prompt. tools, tool_choice, parallel_tool_calls: as in OpenAI's requests.
    chat_template: a jinja2 source to use instead of the model's. chat_template_kwargs: more variables for it.

    Raises: InvalidRequestError for what is wrong with the tools, the type of the template and the variables.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    use: ToolUse | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "use", tool_use(self.tools, self.tool_choice, self.parallel_tool_calls))
        if not isinstance(self.chat_template, str | None):
            raise InvalidRequestError(f"chat_template is {self.chat_template!r:.60}; it must be a text, the jinja2 source")
        _check_variables(self.chat_template_kwargs)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """calls: the form that tools give the answer. message: what the answer is made of, unless that is plain text."""

    token_ids: list[int]
    calls: CallsForm | None
    message: MessageForm | None
    may_think: bool  # if the template lets it

    @property
    def thinking(self) -> Thinking | None:
        return None if self.message is None else self.message.thinking

    def formed(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the form that tools give the answer. Raises: InvalidRequestError if they do not agree."""
        if params.thinking_budget is not None and not self.may_think:
            raise InvalidRequestError(
                f"thinking_budget is {params.thinking_budget}, and this model does not think before it answers; leave it out"
            )
        if self.calls is None:
            return params
        other = params.structured_outputs
        if other is None:
            return replace(params, structured_outputs=StructuredOutputsParams(calls=self.calls))
        if self.calls.must or not (other.json_object or other.json is not None):
            wish = "tool_choice asks for a tool call" if self.calls.must else "tools may be called"
            raise InvalidRequestError(
                f"{wish} and the answer is to have another form (response_format or structured_outputs); leave one of them out"
            )
        assert isinstance(other.json, str | None)
        calls = replace(self.calls, content_schema=other.json or '{"type": "object"}')
        return replace(params, structured_outputs=replace(other, json=None, json_object=None, calls=calls, called=other.name))


class ChatRenderer:
    """Renders conversations of one model. name: of the model, for messages. tool_format: see EngineConfig. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int, *, name: str, tool_format: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._name = name
        self._tool_format = tool_format
        self._latest: ChatTemplate | None = None

    def render(self, chat: Chat, *, truncates: bool = False) -> RenderedChat:
        """truncates: the prompt may be longer than the context.

        Raises InvalidRequestError if there is no chat template or it refuses, and for what is wrong with messages or tools.
        """
        template = self._template(chat.chat_template)
        use = chat.use
        messages: Sequence[Message] = with_call_objects(plain_messages(chat.messages))
        tools = chat.tools if use is not None else None
        format: ToolFormat | None = None
        if use is not None or any(m["role"] == "tool" or m.get("tool_calls") for m in messages):
            format = format_for(template.source, self._tool_format)
        token_ids = self._encode(template, format, messages, tools, chat.chat_template_kwargs or {}, truncates)
        thinking = thinking_after(token_ids, self._tokenizer, template.source)
        calls = None if use is None or format is None else format.form(use)
        form = None
        if use is not None or thinking is not None:
            form = MessageForm(thinking, use, format, self._visible_ids(thinking, calls))
        return RenderedChat(token_ids, calls, form, thinks(template.source))

    def _encode(
        self,
        template: ChatTemplate,
        format: ToolFormat | None,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        truncates: bool,
    ) -> list[int]:
        failure: InvalidRequestError | None = None
        ways = [(messages, tools)] if format is None else format.conversations(messages, tools)
        for shown, shown_tools in ways:
            try:
                return encode_chat(
                    self._tokenizer, template, shown, tools=shown_tools, max_chars=MAX_LONG_CHARS if truncates else None,
                    max_tokens=None if truncates else self._max_model_len, **variables,
                )  # fmt: skip
            except ContextLengthError:
                raise
            except InvalidRequestError as error:
                failure = failure or error
        assert failure is not None, "a format shows a conversation in at least one way"
        raise failure

    def _template(self, source: str | None) -> ChatTemplate:
        source = self._tokenizer.chat_template if source is None else source
        if source is None:
            raise InvalidRequestError(
                f"{self._name} has no chat template; use generate(), /v1/completions or `hotloop run --raw`"
            )
        template = self._latest
        if template is None or template.source != source:
            template = ChatTemplate(source, bos_token=self._token_text("bos"), eos_token=self._token_text("eos"))
            self._latest = template
        return template

    def _token_text(self, which: str) -> str:
        token_id = self._tokenizer.bos_token_id if which == "bos" else self._tokenizer.eos_token_id
        return "" if token_id is None else self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _visible_ids(self, thinking: Thinking | None, calls: CallsForm | None) -> frozenset[int]:
        """Control tokens whose text says what is what in an answer."""
        texts = [*(() if thinking is None else (thinking.begin, thinking.end)), *(() if calls is None else calls.markers)]
        ids = (self._tokenizer.token_id(text) for text in texts)
        return frozenset(i for i in ids if i is not None and self._tokenizer.is_special(i))


def _check_variables(variables: object) -> None:
    if variables is None:
        return
    if not isinstance(variables, Mapping):
        raise InvalidRequestError(f"chat_template_kwargs is {variables!r:.60}; it must be an object")
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier() or name in _OWN_VARIABLES:
            raise InvalidRequestError(f"chat_template_kwargs has {name!r:.60}; it must be a name, and no field of the request")
