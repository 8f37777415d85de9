"""Chat messages to prompt text, by the jinja2 template that comes with a model."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from hotloop.errors import ContextLengthError, InvalidRequestError
from hotloop.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
_MAX_DEPTH = 100


class ChatTemplate:
    """One template; compiled at first use, so that a faulty one harms only those who use it."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        self.source = source
        self._special_tokens = {
            name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text
        }

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text, byte-equal to what the transformers library renders.

        messages: role and content each; content is a string, a list of text parts, or null for an assistant
        message with tool calls.
        Raises InvalidRequestError for malformed messages, with the template's own message where it refuses
        them, and for a template that is faulty or uses more than its allowance.
        """
        from jinja2 import UndefinedError  # imported late, to keep completion without templates lean

        plain = plain_messages(messages)
        variables = {
            **self._special_tokens,
            "messages": plain,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **variables,
        }
        try:
            return self._render(variables)
        except InvalidRequestError as error:
            without_null = [m | {"content": ""} if m.get("content", "") is None else m for m in plain]
            # Some templates take the content for a text without looking; to them a null is an empty one.
            if without_null == plain or not isinstance(error.__cause__, TypeError | UndefinedError):
                raise
            return self._render(variables | {"messages": without_null})

    def _render(self, variables: dict[str, Any]) -> str:
        from jinja2 import TemplateError

        from hotloop.text.template_environment import TemplateRaisedError, render_pieces
        from hotloop.text.template_limits import Allowance, TemplateLimits, current_allowance

        limits = TemplateLimits()
        if len(self.source) > limits.source_chars:
            raise InvalidRequestError(
                f"the chat template has {len(self.source)} characters, more than {limits.source_chars};"
                " pass another one"
            )
        token = current_allowance.set(Allowance(limits, sum(map(len, _strings(variables)))))
        try:
            return render_pieces(self._template.generate(variables))
        except TemplateRaisedError as error:
            raise InvalidRequestError(f"the chat template refuses these messages: {error}") from error
        except TemplateError as error:
            raise InvalidRequestError(f"the chat template cannot be used: {error}; pass another one") from error
        except Exception as error:  # a template can raise anything that an expression can
            raise InvalidRequestError(
                f"the chat template fails on these messages: {type(error).__name__}: {error}"
            ) from error
        finally:
            current_allowance.reset(token)

    @cached_property
    def _template(self) -> "Template":
        from hotloop.text.template_environment import TemplateEnvironment

        return TemplateEnvironment().from_string(self.source)


@lru_cache(maxsize=8)
def asks_for(source: str, variable: str) -> bool:
    """Whether a chat template has a use for a variable that it is given; not if it is faulty."""
    from jinja2 import TemplateError, meta

    from hotloop.text.template_environment import TemplateEnvironment
    from hotloop.text.template_limits import TemplateLimits

    if len(source) > TemplateLimits().source_chars:
        return False
    try:
        return variable in meta.find_undeclared_variables(TemplateEnvironment().parse(source))
    except (TemplateError, RecursionError):
        return False


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    max_tokens: int | None = None,
    max_chars: int | None = None,
    **variables: Any,
) -> list[int]:
    """Token ids of the rendered conversation, with the control tokens that the template wrote and no others.

    Texts of control tokens inside messages, tools and variables stay literal text. BOS is up to the template.
    max_tokens, max_chars: refuse a conversation that must have more tokens, or whose text has more characters, before the
    costly part of the work.
    Raises InvalidRequestError like `ChatTemplate.render`, and for text that is not valid Unicode.
    """
    data = {"messages": plain_messages(messages), "tools": tools, **variables}
    disguise = _Disguise(tokenizer, data, template.source)
    text = template.render(add_generation_prompt=add_generation_prompt, **disguise.put_on(data))
    least = tokenizer.min_num_tokens(text)
    if max_tokens is not None and least > max_tokens:
        raise ContextLengthError(
            f"the conversation has {len(text)} characters, at least {least} tokens, and the context length is {max_tokens}; "
            f"shorten it or raise max_model_len"
        )
    if max_chars is not None and len(text) > max_chars:
        raise InvalidRequestError(f"the conversation has {len(text)} characters; {max_chars} at most")
    ids, position = [], 0
    for start, end, token_id in tokenizer.find_control(text):
        ids += _encode_piece(tokenizer, disguise.take_off(text[position:start]), position)
        ids.append(token_id)
        position = end
    return ids + _encode_piece(tokenizer, disguise.take_off(text[position:]), position)


def _encode_piece(tokenizer: Tokenizer, piece: str, position: int) -> list[int]:
    return tokenizer.encode_after_control(piece) if position else tokenizer.encode(piece, add_special=False)


class _Disguise:
    """Private-use characters that stand for control-token texts while a template works on a user's data."""

    def __init__(self, tokenizer: Tokenizer, data: object, template_source: str) -> None:
        """Raises InvalidRequestError for data that leave too few of these characters."""
        self._tokenizer = tokenizer
        strings = list(_strings(data))
        texts = {text[a:b] for text in strings for a, b, _ in tokenizer.find_control(text)}
        self._stand_ins: dict[str, str] = {}
        if texts:
            taken = {*template_source, *"".join(strings)}
            free = (char for char in map(chr, range(0xF0000, 0x10FFFE)) if char not in taken)
            self._stand_ins = dict(zip(sorted(texts), free, strict=False))
            if len(self._stand_ins) < len(texts):
                raise InvalidRequestError(
                    f"the conversation holds {len(texts)} different texts of control tokens, and leaves only "
                    f"{len(self._stand_ins)} of the private-use characters that stand for them in the template; shorten it"
                )
        self._meanings = str.maketrans({stand_in: text for text, stand_in in self._stand_ins.items()})

    def put_on(self, value: Any) -> Any:
        """The same data with every control-token text replaced by its stand-in."""
        if not self._stand_ins:
            return value
        if isinstance(value, str):
            parts, position = [], 0
            for start, end, _ in self._tokenizer.find_control(value):
                parts += [value[position:start], self._stand_ins[value[start:end]]]
                position = end
            return "".join(parts) + value[position:]
        if isinstance(value, Mapping):
            # Names that a template asks for stay, whatever the vocabulary: "role" may hold a control token called "o".
            return {
                key if isinstance(key, str) and key.isidentifier() else self.put_on(key): self.put_on(item)
                for key, item in value.items()
            }
        return [self.put_on(item) for item in value] if isinstance(value, list | tuple) else value

    def take_off(self, text: str) -> str:
        """The text with every stand-in replaced by what it stands for."""
        return text.translate(self._meanings) if self._meanings else text


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    """All strings inside plain data, keys included."""
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"messages and tools must not be nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain dictionaries, lists of text parts joined by line ends.

    Raises InvalidRequestError naming the message and field.
    """
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequestError(f"messages must be a list of at least one message, not {messages!r:.80}")
    return [_plain_message(i, message) for i, message in enumerate(messages)]


def _plain_message(index: int, message: Message) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content, not {message!r:.80}")
    plain = dict(message)
    role, content = plain.get("role"), plain.get("content")
    if not isinstance(role, str):
        raise InvalidRequestError(f"{where}.role must be a string, not {role!r:.80}")
    if isinstance(content, list | tuple):
        plain["content"] = "\n".join(_part_text(f"{where}.content[{k}]", p) for k, p in enumerate(content))
    elif content is None:
        if not (role == "assistant" and plain.get("tool_calls")):
            raise InvalidRequestError(f"{where}.content may be null only for an assistant message with tool_calls")
    elif not isinstance(content, str):
        raise InvalidRequestError(f"{where}.content must be a string or a list of parts, not {content!r:.80}")
    return plain


def _part_text(where: str, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    kind = part.get("type") if isinstance(part, Mapping) else part
    raise InvalidRequestError(f"{where} is {kind!r:.80}; only text parts {{'type': 'text', 'text': ...}} are supported")
