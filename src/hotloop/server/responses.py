"""Answers in OpenAI's shapes: plain dictionaries that strict JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.engine.inputs import Ask
from hotloop.request import CompletionOutput, Logprob, RequestOutput
from hotloop.server.bodies import Body
from hotloop.text.output_processor import output_detokenizer
from hotloop.text.text_offsets import TextOffsets
from hotloop.text.tokenizer import Tokenizer

Entry = dict[int, Logprob]  # of one token, which comes first


@dataclass(frozen=True, slots=True)
class Head:
    """What a response and all chunks of a stream begin with, and what of its usage is known before.

    max_tokens: the cap that applied, if that is known.
    """

    id: str
    created_s: int
    model: str
    fingerprint: str
    max_tokens: int | None = None


def chat_response(head: Head, output: RequestOutput, body: Body, tokenizer: Tokenizer) -> dict[str, Any]:
    num_top = body.params.logprobs or 0
    choices: list[dict[str, Any]] = []
    for choice in output.outputs:
        logprobs = None if choice.logprobs is None else chat_logprobs(choice.token_ids, choice.logprobs, num_top, tokenizer)
        choices.append({"index": choice.index, "message": _message(choice), "logprobs": logprobs} | _end(choice, body))
    response = _response(head, body, "chat.completion", [output], choices)
    return response | {"prompt_logprobs": vllm_logprobs(output.prompt_logprobs)} if body.prompt_logprobs else response


def _message(choice: CompletionOutput) -> dict[str, Any]:
    """content: null beside tool calls if there is none."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.tool_calls
        ]
    return message


def completion_response(
    head: Head, outputs: Sequence[RequestOutput], body: Body, tokenizer: Tokenizer
) -> dict[str, Any]:
    """outputs: one per prompt; choices are numbered prompt by prompt."""
    num_top = body.params.logprobs or 0
    choices: list[dict[str, Any]] = []
    for output in outputs:
        prompt_ids = output.prompt_token_ids
        prefix = prompt_text(output, prompt_ids, tokenizer) if body.echo else ""
        of_prompt = {"prompt_logprobs": vllm_logprobs(output.prompt_logprobs)} if body.prompt_logprobs else {}
        echoed = echoed_logprobs(output, prompt_ids, output.prompt_logprobs, body, tokenizer)
        for choice in output.outputs:
            logprobs = None
            if choice.logprobs is not None:
                offsets = output_offsets(prompt_ids, body, tokenizer, len(prefix)).push(choice.token_ids)
                logprobs = completion_logprobs(choice.token_ids, choice.logprobs, num_top, tokenizer, offsets)
                if echoed is not None:
                    logprobs = {name: None if part is None else part + logprobs[name] for name, part in echoed.items()}
            choices.append(
                {"index": len(choices), "text": prefix + choice.text, "logprobs": logprobs}
                | of_prompt | _end(choice, body)
            )  # fmt: skip
    return _response(head, body, "text_completion", outputs, choices)


def error_body(message: str, *, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def prompt_text(prompt: Ask | RequestOutput, token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """What ``echo`` repeats of a prompt: its text as given, or that of the ids that are left of it."""
    text = _given_text(prompt)
    return tokenizer.decode(token_ids, skip_special=False) if text is None else text


def _given_text(prompt: Ask | RequestOutput) -> str | None:
    text = prompt.text if isinstance(prompt, Ask) else prompt.prompt
    return None if prompt.num_truncated_tokens else text


def prompt_offsets(prompt: Ask | RequestOutput, token_ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Where its tokens begin in `prompt_text`; in a text that the tokenizer normalizes (to NFC), as if it had been so."""
    text = _given_text(prompt)
    # A given text has no control tokens: those that are there were added to it.
    offsets = TextOffsets(tokenizer, tokenizer.detokenizer(skip_special=text is not None)).push(token_ids)
    return offsets if text is None else [min(offset, len(text)) for offset in offsets]


def echoed_logprobs(
    prompt: Ask | RequestOutput,
    token_ids: Sequence[int],
    entries: Sequence[Entry | None] | None,
    body: Body,
    tokenizer: Tokenizer,
) -> dict[str, Any] | None:
    """The ``logprobs`` that every choice of a prompt begins with. entries: of the prompt, if they are asked for."""
    num_top = body.params.logprobs
    if not body.echo or entries is None or num_top is None:
        return None
    return completion_logprobs(token_ids, entries, num_top, tokenizer, prompt_offsets(prompt, token_ids, tokenizer))


def output_offsets(prompt_ids: Sequence[int], body: Body, tokenizer: Tokenizer, start: int) -> TextOffsets:
    """Where the tokens of a choice begin in its text. start: characters before the first."""
    skips = body.params.skip_special_tokens
    return TextOffsets(tokenizer, output_detokenizer(tokenizer, prompt_ids, skip_special_tokens=skips), start)


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def usage_of(outputs: Sequence[RequestOutput], head: Head, body: Body) -> dict[str, Any]:
    """Of all prompts and choices together; a prompt's tokens count once, whatever n is."""
    total = usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(choice.token_ids) for output in outputs for choice in output.outputs),
    )
    details = {"cached_tokens": sum(output.num_cached_tokens for output in outputs)}
    if body.params.truncate_prompt_tokens is not None:
        details["truncated_tokens"] = sum(output.num_truncated_tokens for output in outputs)
    total["prompt_tokens_details"] = details
    messages = [choice.message for output in outputs for choice in output.outputs if choice.message is not None]
    if messages:
        total["completion_tokens_details"] = {"reasoning_tokens": sum(m.num_reasoning_tokens for m in messages)}
    if head.max_tokens is not None:
        total["max_tokens"] = head.max_tokens
    return total


def timings_of(output: RequestOutput) -> dict[str, float | int] | None:
    """Our figures, and llama-server's names for some of them; telemetry/schema.toml defines both."""
    ours = output.timings
    if ours is None:
        return None
    prompt_n = len(output.prompt_token_ids) - output.num_cached_tokens
    prompt_s = ours["ttft_s"] - ours["queued_s"]
    return ours | {
        "cache_n": output.num_cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_s * 1e3,
        "prompt_per_second": prompt_n / prompt_s if prompt_s > 0 else 0.0,
        "predicted_n": ours["drawn_tokens"],
        "predicted_ms": ours["decode_s"] * 1e3,
        "predicted_per_token_ms": ours["tpot_s"] * 1e3,
        "predicted_per_second": ours["decode_tokens_per_s"],
        "draft_n": ours["draft_tokens"],
        "draft_n_accepted": ours["accepted_tokens"],
    }


def _end(choice: CompletionOutput, body: Body) -> dict[str, Any]:
    end: dict[str, Any] = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
    return end | {"token_ids": choice.token_ids} if body.return_token_ids else end


def _response(
    head: Head, body: Body, kind: str, outputs: Sequence[RequestOutput], choices: list[dict[str, Any]]
) -> dict[str, Any]:
    """seed and timings: those of the first prompt; every prompt of a request has the same seed if it named one."""
    return {
        "id": head.id,
        "object": kind,
        "created": head.created_s,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices,
        "usage": usage_of(outputs, head, body),
        "seed": outputs[0].seed,
        "timings": timings_of(outputs[0]),
    }


def vllm_logprobs(entries: Sequence[Entry | None] | None) -> list[dict[int, dict[str, Any]] | None] | None:
    """In vLLM's shape: per token, token id to logprob, null for a prompt's first."""
    if entries is None:
        return None
    return [
        None if entry is None
        else {
            token_id: {"logprob": _finite(value.logprob), "rank": value.rank, "decoded_token": value.decoded_token}
            for token_id, value in entry.items()
        }
        for entry in entries
    ]  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _token(token_id: int, logprob: Logprob, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": logprob.decoded_token, "logprob": _finite(logprob.logprob), "bytes": list(raw)}


def _top(entry: Entry, num_top: int) -> list[tuple[int, Logprob]]:
    """The top logprobs of an entry, best first; the drawn token may not be one of them."""
    return sorted(((i, v) for i, v in entry.items() if v.rank <= num_top), key=lambda item: item[1].rank)


def _by_text(top: Sequence[tuple[int, Logprob]]) -> dict[str | None, float | None]:
    """Best first. Parts of characters, and not only they, are different tokens of one text: it stands for the best of them."""
    values: dict[str | None, float | None] = {}
    for _, value in top:
        values.setdefault(value.decoded_token, _finite(value.logprob))
    return values


def chat_logprobs(
    token_ids: Sequence[int], entries: Sequence[Entry], num_top: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The ``logprobs`` of a chat choice or chunk. num_top: top logprobs asked for per token."""
    content = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        top = [_token(i, value, tokenizer) for i, value in _top(entry, num_top)]
        content.append({**_token(token_id, entry[token_id], tokenizer), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    token_ids: Sequence[int],
    entries: Sequence[Entry | None],
    num_top: int,
    tokenizer: Tokenizer,
    offsets: Sequence[int],
) -> dict[str, Any]:
    """The ``logprobs`` of a completion choice or chunk; the first token of a prompt has none. offsets: where the tokens begin
    in the choice's text."""
    texts = [tokenizer.token_bytes(token_id).decode("utf-8", "replace") for token_id in token_ids]
    own = zip(token_ids, entries, strict=True)
    tops = [None if entry is None else _by_text(_top(entry, num_top)) for entry in entries]
    return {
        "tokens": texts,
        "token_logprobs": [None if entry is None else _finite(entry[i].logprob) for i, entry in own],
        "top_logprobs": tops if num_top else None,
        "text_offset": offsets,
    }
