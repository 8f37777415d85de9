"""Whether a request can be served at all, on either side of a transport: depends on nothing that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.errors import InvalidRequestError
from hotloop.request import Request
from hotloop.scheduler.check_size import check_size

if TYPE_CHECKING:
    from hotloop.engine.client import EngineInfo


def check_request(request: Request, info: EngineInfo) -> None:
    """For an engine in a process of its own.

    Raises: InvalidRequestError if its tokens are outside the vocabulary, its prompt fills the context or it has
    logits_processors; CapacityError if it can never fit in the KV pool.
    """
    if request.params.logits_processors is not None:
        raise InvalidRequestError(
            "logits_processors are functions of this process, and the engine is in another; leave them out or use LLM, AsyncLLM"
        )
    check_vocabulary(request, info.vocab_size)
    check_size(request, info.max_model_len, info.max_request_tokens)


def check_vocabulary(request: Request, vocab_size: int) -> None:
    """Raises InvalidRequestError for a token id outside the vocabulary."""
    for what, ids in (("prompt", request.prompt_token_ids), ("output", request.output_token_ids)):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            bad = next(i for i in ids if not 0 <= i < vocab_size)
            raise InvalidRequestError(f"{what} token id {bad} is outside the vocabulary 0..{vocab_size - 1}")
    request.params.check_vocabulary(vocab_size)
