"""Whether a request fits into the context and the KV pool at all."""

from __future__ import annotations

from hotloop.errors import CapacityError, ContextLengthError, InvalidRequestError
from hotloop.request import Request


def check_size(request: Request, max_model_len: int, max_request_tokens: int) -> None:
    """max_request_tokens: prompt + output tokens that the pool has room for when the request is alone.

    Raises: InvalidRequestError if the prompt is empty or prompt and max_tokens exceed the context; CapacityError if the pool
    is too small.
    """
    num_prompt, limit = len(request.prompt_token_ids), max_model_len
    if not num_prompt:
        raise InvalidRequestError("the prompt is empty; give at least one token")
    if num_prompt >= limit:
        raise ContextLengthError(
            f"the prompt has {num_prompt} tokens and the context length is {limit}; "
            f"shorten the prompt or raise max_model_len"
        )
    if num_prompt + request.max_tokens > limit:
        raise ContextLengthError(
            f"{num_prompt} prompt tokens and max_tokens {request.max_tokens} exceed the context length {limit}; "
            f"lower max_tokens to at most {limit - num_prompt}"
        )
    if len(request.output_token_ids) >= request.max_tokens:
        raise InvalidRequestError(
            f"the request arrives with {len(request.output_token_ids)} output tokens and max_tokens is "
            f"{request.max_tokens}; raise max_tokens"
        )
    if num_prompt + request.max_tokens > max_request_tokens:
        raise CapacityError(
            f"the request has {num_prompt} prompt tokens and max_tokens {request.max_tokens}, and the KV pool holds "
            f"{max_request_tokens} tokens of a request; lower max_tokens or raise kv_cache_memory_bytes"
        )
