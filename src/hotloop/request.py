"""A request and what comes out of it: plain data, in vLLM's shapes where users meet it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NewType, TypeAlias

from hotloop.sampling_params import SamplingParams

RequestId = NewType("RequestId", str)
FinishReason = Literal["stop", "length", "tool_calls", "abort"]  # an engine ends with a stop or at a length
ErrorKind = Literal["internal", "invalid", "deadline", "engine_dead", "shutdown"]  # of a request that ended with an error
RestartReason = Literal["died", "stalled"]  # of an engine's process
TokenSequence: TypeAlias = tuple[int, ...]
Breaker: TypeAlias = tuple[TokenSequence, tuple[TokenSequence, ...]]
"""Of dry_sequence_breakers: one of the ids, then all of one of the sequences, which may be empty."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the answers to a conversation may think before they answer: between two texts of the output.

    begin_ids, end_ids: the usual tokens of the texts, one each where the vocabulary has them. is_open: the prompt has written
    the first already, so the output begins inside; otherwise it thinks only if it begins with that text.
    """

    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool
    begin: str = "<think>"
    end: str = "</think>"


@dataclass(slots=True, eq=False)
class Request:
    """The engine's state of one request, that is of one choice. params are resolved: no None but max_tokens and logprobs.

    A resumed request arrives with output_token_ids: they are prefilled like a prompt and stay output. Choices 1.. of a
    request name choice 0's as parent_id and share the blocks of its prompt.
    """

    request_id: RequestId
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int  # of output, what it arrived with included; clamped to the room left in the context
    stop_token_ids: frozenset[int]
    arrival_s: float = 0.0  # time.perf_counter
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0  # tokens whose K/V is stored
    choice: int = 0  # index among the n of its prompt; part of the sampler's noise
    priority: int = 0  # lower runs first, under the policy "priority"
    deadline_s: float | None = None  # time.perf_counter; unfinished then, it ends with an error
    cache_salt: str = ""  # prompts share blocks only under the same salt
    parent_id: RequestId | None = None
    num_prefix_hit_tokens: int = 0  # of the first admission: usage's cached_tokens
    num_preemptions: int = 0
    bad_word_ids: tuple[TokenSequence, ...] = ()  # the tokens of bad_words
    dry_breakers: tuple[Breaker, ...] = ()
    mirostat_mu: float | None = None  # of the next token, once one was drawn with mirostat
    num_scored_tokens: int = 0  # of the prompt, those whose logits have been seen for prompt_logprobs
    thinking: Thinking | None = None  # of a conversation whose answers may think
    draft_token_ids: list[int] = field(default_factory=list)  # what may come next, for one step to verify

    @property
    def wants_scores(self) -> bool:
        """Whether logits of its prompt are still to be seen. Choice 0 does it for all, and only once."""
        return (
            self.params.prompt_logprobs is not None
            and self.choice == 0
            and not self.output_token_ids
            and self.num_scored_tokens < len(self.prompt_token_ids) - 1
        )

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def token_ids(self, begin: int, end: int) -> list[int]:
        """Tokens at positions [begin, end) of prompt + output + drafts."""
        num_prompt, num_tokens = len(self.prompt_token_ids), self.num_tokens
        tokens = (
            self.prompt_token_ids[begin:end]
            + self.output_token_ids[max(0, begin - num_prompt) : max(0, end - num_prompt)]
        )
        return tokens + self.draft_token_ids[max(0, begin - num_tokens) : end - num_tokens] if end > num_tokens else tokens


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs of one token, drawn or of the prompt: its own, its rank (1 is the top), and the top ones, best first."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Timeline(NamedTuple):
    """Where a request's time went, from its arrival to the step that emitted its latest token: seconds that add up.

    Moments are of time.perf_counter, which all processes of a machine share. telemetry/schema.toml defines the parts.
    """

    arrival_s: float
    first_token_s: float
    last_token_s: float
    queued_s: float
    own_prefill_s: float
    own_decode_s: float
    others_prefill_s: float
    preempted_s: float
    engine_overhead_s: float
    decode_kv_bytes: int  # KV bytes that its decode steps read
    num_prefix_hit_tokens: int
    num_preemptions: int
    previous_token_s: float = 0.0  # of the step before that emitted tokens; 0 at the first
    recovery_s: float = 0.0
    num_decode_steps: int = 0  # steps after the first that emitted tokens
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class TokenDelta(NamedTuple):
    """What one step adds to a request: ids out of the core, before any text. A tuple, since every token makes one.

    timeline: None only beside an error of a request that never ran. mirostat_mu: of the token after these. prompt_logprobs:
    of the prompt's tokens but the first, with the first token drawn.
    """

    request_id: RequestId
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    error: str | None = None
    timeline: Timeline | None = None
    error_kind: ErrorKind = "internal"
    mirostat_mu: float | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Logprob:
    """vLLM's shape of a logprob entry."""

    logprob: float
    rank: int
    decoded_token: str


class MessagePart(NamedTuple):
    """A piece of an assistant's message. call: begins tool call number ``call``, whose name is the text and whose id is
    ``call_id``; arguments: goes on with that call's."""

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str
    call: int = 0
    call_id: str = ""


@dataclass(slots=True)
class ToolCall:
    """arguments: JSON, as the model wrote it; cut short where the answer was."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class AssistantMessage:
    """A choice's text in its parts. num_reasoning_tokens: output tokens up to the end of the reasoning."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    num_reasoning_tokens: int = 0

    def add(self, parts: Iterable[MessagePart]) -> None:
        for part in parts:
            if part.kind == "content":
                self.content += part.text
            elif part.kind == "reasoning":
                self.reasoning += part.text
            elif part.kind == "call":
                self.tool_calls.append(ToolCall(part.call_id, part.text, ""))
            else:
                self.tool_calls[part.call].arguments += part.text


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request. text: all that it said. message: the same in its parts, if it is of a chat whose answers may
    think or call tools."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    message: AssistantMessage | None = None

    @property
    def content(self) -> str:
        """What is meant for the reader: the text without reasoning and tool calls."""
        return self.text if self.message is None else self.message.content

    @property
    def reasoning(self) -> str:
        return "" if self.message is None else self.message.reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [] if self.message is None else self.message.tool_calls


@dataclass(slots=True)
class RequestOutput:
    """A request's answer so far. ``timings`` follows telemetry/schema, those of choice 0; ``seed`` replays the answer.

    num_cached_tokens: of the prompt, those that the prefix cache had. num_truncated_tokens: of the prompt as it was asked,
    those that truncate_prompt_tokens left out. prompt_logprobs: one entry per token of the prompt, None for the first.
    """

    request_id: RequestId
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    seed: int
    timings: dict[str, float | int] | None = None
    num_cached_tokens: int = 0
    num_truncated_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
