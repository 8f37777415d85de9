"""Answers in OpenAI's shapes: plain dictionaries that strict JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hotloop.request import CompletionOutput, Logprob, RequestOutput
from hotloop.text.tokenizer import Tokenizer


def chat_response(
    output: RequestOutput, model: str, created_s: int, num_top: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """num_top: top logprobs asked for per token."""
    choices = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _chat_logprobs(choice, num_top, tokenizer),
            "finish_reason": choice.finish_reason,
        }
        for choice in output.outputs
    ]
    return _response(f"chatcmpl-{output.request_id}", "chat.completion", [output], choices, model, created_s)


def completion_response(
    outputs: Sequence[RequestOutput], model: str, created_s: int, num_top: int, tokenizer: Tokenizer
) -> dict[str, Any]:
    """outputs: one per prompt; choices are numbered prompt by prompt. num_top: top logprobs asked for per token."""
    choices = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": _completion_logprobs(choice, num_top, tokenizer),
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choice for output in outputs for choice in output.outputs)
    ]
    return _response(f"cmpl-{outputs[0].request_id}", "text_completion", outputs, choices, model, created_s)


def error_body(message: str, *, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Of all prompts and choices together; a prompt's tokens count once, whatever n is."""
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    completion_tokens = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
    }


def _response(
    id: str, kind: str, outputs: Sequence[RequestOutput], choices: list[dict[str, Any]], model: str, created_s: int
) -> dict[str, Any]:
    """seed and timings: those of the first prompt; every prompt of a request has the same seed if it named one."""
    return {
        "id": id,
        "object": kind,
        "created": created_s,
        "model": model,
        "choices": choices,
        "usage": usage(outputs),
        "seed": outputs[0].seed,
        "timings": outputs[0].timings,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _token(token_id: int, logprob: Logprob, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": logprob.decoded_token, "logprob": _finite(logprob.logprob), "bytes": list(raw)}


def _top(entry: dict[int, Logprob], num_top: int) -> list[tuple[int, Logprob]]:
    """The top logprobs of an entry, best first; the drawn token may not be one of them."""
    return sorted(((i, v) for i, v in entry.items() if v.rank <= num_top), key=lambda item: item[1].rank)


def _chat_logprobs(choice: CompletionOutput, num_top: int, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    content = []
    for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True):
        top = [_token(i, value, tokenizer) for i, value in _top(entry, num_top)]
        content.append({**_token(token_id, entry[token_id], tokenizer), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _completion_logprobs(choice: CompletionOutput, num_top: int, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if choice.logprobs is None:
        return None
    texts = [entry[i].decoded_token for i, entry in zip(choice.token_ids, choice.logprobs, strict=True)]
    offsets = [0]
    for text in texts[:-1]:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": texts,
        "token_logprobs": [
            _finite(entry[i].logprob) for i, entry in zip(choice.token_ids, choice.logprobs, strict=True)
        ],
        "top_logprobs": [{v.decoded_token: _finite(v.logprob) for _, v in _top(entry, num_top)} for entry in choice.logprobs],
        "text_offset": offsets[: len(texts)],
    }
