"""EngineCore: add, abort, step. Token ids in, token deltas out; the one owner of requests, blocks and the model."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from hotloop.engine.arithmetic import own_arithmetic
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import CapacityError, HotloopError, InvalidRequestError
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.ops.batch import Chunk, ForwardBatch, build_batch
from hotloop.request import FinishReason, Request, RequestId, TokenDelta, TokenLogprobs
from hotloop.sampling.sampler import RowParams, sample, token_logprobs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did. forward_s, sample_s: seconds. kv_bytes: KV bytes read by its decode tokens."""

    num_tokens: int
    num_decode_tokens: int
    forward_s: float
    sample_s: float
    kv_bytes: int


class EngineCore:
    """Runs requests first come, first served, one at a time; a prompt is computed in chunks of the step's budget."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.kv_cache = KVCacheManager(runner.storage.layout, runner.storage.num_blocks)
        self.last_step: StepRecord | None = None
        self._queue: deque[Request] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._queue)

    def add(self, request: Request) -> None:
        """Admit a request. Raises as ``check``."""
        self.check(request)
        self._queue.append(request)

    def check(self, request: Request) -> None:
        """Whether a request can be served at all.

        Raises: InvalidRequestError if its tokens are outside the vocabulary or its prompt fills the context;
        CapacityError if it can never fit in the KV pool.
        """
        vocab_size = self.runner.model.config.vocab_size
        prompt = request.prompt_token_ids
        if not prompt:
            raise InvalidRequestError("the prompt is empty; give at least one token")
        for token_id in prompt:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(f"prompt token id {token_id} is outside the vocabulary 0..{vocab_size - 1}")
        if len(prompt) >= self.runner.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens and the context length is {self.runner.max_model_len}; "
                f"shorten the prompt or raise max_model_len"
            )
        request.params.check_vocabulary(vocab_size)
        needed = self.kv_cache.layout.blocks_for(len(prompt) + request.max_tokens - 1)
        if needed > self.kv_cache.num_blocks:
            raise CapacityError(
                f"the request needs {needed} KV blocks ({len(prompt)} prompt + {request.max_tokens} new tokens) and the "
                f"pool has {self.kv_cache.num_blocks}; lower max_tokens or raise kv_cache_memory_bytes"
            )

    def abort(self, request_id: RequestId) -> None:
        """Drop a request in whatever state it is; an unknown id is fine."""
        self.kv_cache.free(request_id)
        self._queue = deque(r for r in self._queue if r.request_id != request_id)

    @own_arithmetic()
    def step(self) -> list[TokenDelta]:
        """One step: compute the next chunk of the oldest request and, at its end, draw a token.

        What goes wrong in it ends that request with an error, and no other.
        """
        if not self._queue:
            return []
        request = self._queue[0]
        try:
            deltas = self._advance(request)
        except Exception as error:
            message = str(error)
            if not isinstance(error, HotloopError):  # a bug, or no memory: the log keeps the traceback
                _log.exception("the step of %s failed", request.request_id)
                message = f"{type(error).__name__}: {error}"
            deltas = [TokenDelta(request.request_id, (), (), None, message)]
        if deltas and (deltas[0].finish_reason or deltas[0].error):
            self.abort(request.request_id)
        return deltas

    def _advance(self, request: Request) -> list[TokenDelta]:
        """Compute the next chunk of a request and, at its end, draw a token."""
        begin = request.num_computed_tokens
        end = min(request.num_tokens, begin + self.runner.max_tokens)
        allocated = self.kv_cache.allocate(request.request_id, end)
        assert allocated, "admission reserved the blocks"
        draws = end == request.num_tokens

        started_s = time.perf_counter()
        logits = self.runner.forward(self._batch(request, begin, end, draws))
        forwarded_s = time.perf_counter()
        request.num_computed_tokens = end
        is_decode = begin >= len(request.prompt_token_ids)
        deltas = [self._draw(request, logits[0])] if draws else []
        self.last_step = StepRecord(
            end - begin, int(is_decode), forwarded_s - started_s, time.perf_counter() - forwarded_s,
            self.kv_cache.layout.bytes_read([end]) if is_decode else 0,
        )  # fmt: skip
        return deltas

    def _batch(self, request: Request, begin: int, end: int, draws: bool) -> ForwardBatch:
        tables = self.kv_cache.block_tables(request.request_id)
        chunk = Chunk(request.token_ids(begin, end), begin, tables, "last" if draws else "none")
        return build_batch([chunk], self.kv_cache.layout.block_sizes)

    def _draw(self, request: Request, logits: np.ndarray) -> TokenDelta:
        params = request.params
        num_output = len(request.output_token_ids)
        barred = request.stop_token_ids if num_output < params.min_tokens else frozenset()
        row = RowParams(
            params.temperature or 0.0, params.top_k or 0, params.top_p or 1.0, params.min_p or 0.0, request.seed
        )
        token = sample(self.runner.isa, logits, row, position=request.num_tokens, barred=sorted(barred))
        logprobs: tuple[TokenLogprobs, ...] = ()
        if params.logprobs is not None:
            logprobs = (token_logprobs(self.runner.isa, logits, token, params.logprobs),)
        request.output_token_ids.append(token)
        finish: FinishReason | None = None
        if token in request.stop_token_ids:
            finish = "stop"
        elif num_output + 1 >= request.max_tokens:
            finish = "length"
        return TokenDelta(request.request_id, (token,), logprobs, finish)
