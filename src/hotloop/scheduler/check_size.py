"""Whether a request fits into the context and the KV pool at all."""

from __future__ import annotations

from hotloop.errors import CapacityError, InvalidRequestError
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.request import Request
from hotloop.scheduler.limits import SchedulerLimits


def check_size(request: Request, limits: SchedulerLimits, kv_cache: KVCacheManager) -> None:
    """Raises: InvalidRequestError if the prompt is empty or prompt and max_tokens exceed the context; CapacityError if the
    pool is too small for the request even when it is alone."""
    num_prompt, limit = len(request.prompt_token_ids), limits.max_model_len
    if not num_prompt:
        raise InvalidRequestError("the prompt is empty; give at least one token")
    if num_prompt >= limit:
        raise InvalidRequestError(
            f"the prompt has {num_prompt} tokens and the context length is {limit}; "
            f"shorten the prompt or raise max_model_len"
        )
    if num_prompt + request.max_tokens > limit:
        raise InvalidRequestError(
            f"{num_prompt} prompt tokens and max_tokens {request.max_tokens} exceed the context length {limit}; "
            f"lower max_tokens to at most {limit - num_prompt}"
        )
    if len(request.output_token_ids) >= request.max_tokens:
        raise InvalidRequestError(
            f"the request arrives with {len(request.output_token_ids)} output tokens and max_tokens is "
            f"{request.max_tokens}; raise max_tokens"
        )
    needed = kv_cache.blocks_to_hold(num_prompt + request.max_tokens - 1)
    if needed > kv_cache.num_blocks:
        raise CapacityError(
            f"the request needs {needed} KV blocks ({num_prompt} prompt + {request.max_tokens} new tokens) and the "
            f"pool has {kv_cache.num_blocks}; lower max_tokens or raise kv_cache_memory_bytes"
        )
