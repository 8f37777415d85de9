"""EngineCore: add, abort, step. Token ids in, token deltas out; the one owner of requests, blocks and the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hotloop.config import EngineConfig
from hotloop.engine.accounts import Accounts, Live, token_deltas
from hotloop.engine.arithmetic import own_arithmetic
from hotloop.engine.batch_builder import BatchBuilder
from hotloop.engine.checks import check_vocabulary
from hotloop.engine.compiling import Compiling, Grammars
from hotloop.engine.faults import draw_rows, kind_of, message_of
from hotloop.engine.masks import Masks
from hotloop.engine.runner import Runner
from hotloop.errors import InvalidRequestError
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.request import ErrorKind, FinishReason, Request, RequestId, TokenDelta
from hotloop.sampling.draw import Draw, Row, Sampler
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.sampling.state import SamplerState
from hotloop.scheduler.limits import SchedulerLimits
from hotloop.scheduler.output import ScheduledRequest, SchedulerOutput
from hotloop.scheduler.policies import ByPriority, FewBesideDecodes, FirstComeFirstServed, Policies
from hotloop.scheduler.scheduler import Scheduler
from hotloop.telemetry.steps import StepLog, StepRecord, StepReport
from hotloop.telemetry.timings import RequestClock

_log = logging.getLogger(__name__)

_COMPILING_WAIT_S = 0.005  # a step's, where nobody has work but those that compile

Drawing: TypeAlias = tuple[Live, int, RequestId]  # who draws, from which row of logits, and whose forward pass gave it


class EngineCore:
    """Runs all requests that are there, together: every step computes some tokens of each and draws where a request is
    at its last token.

    config: only what concerns scheduling and the prefix cache; sizes are the runner's. grammars: None if no request has
    structured_outputs. Not thread-safe; `client.InProcessClient` is.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        policies: Policies | None = None,
        *,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.runner = runner
        self.steps = StepLog()
        self.report: StepReport | None = None  # of the latest step, once there was one
        self._prefix_caching = config.enable_prefix_caching
        self._policies = policies or Policies(
            order=ByPriority() if config.scheduling_policy == "priority" else FirstComeFirstServed(),
            prefill_budget=FewBesideDecodes(config.prefill_tokens_beside_decodes),
        )
        self._limits = SchedulerLimits(
            max_num_seqs=runner.max_num_seqs, max_num_batched_tokens=runner.max_tokens,
            max_model_len=runner.max_model_len,
        )  # fmt: skip
        layout = runner.layout
        self._builder = BatchBuilder(
            layout.block_sizes,
            max_requests=runner.max_num_seqs, max_tokens=runner.max_tokens, max_model_len=runner.max_model_len,
        )  # fmt: skip
        self._sampler = Sampler(runner.isa)
        self._compiling = None if grammars is None else Compiling(grammars)
        self._masks = Masks(runner.vocab_size)
        self._accounts = Accounts(layout)
        self._live: dict[RequestId, Live] = {}
        self._unfinished: SchedulerOutput | None = None  # scheduled, and interrupted before anything changed
        self._is_changing = False
        self._reset()

    def _reset(self) -> None:
        """A scheduler and a KV cache that hold nothing."""
        self.kv_cache = KVCacheManager(
            self.runner.layout, self.runner.num_blocks, prefix_caching=self._prefix_caching
        )
        self.scheduler = Scheduler(self.kv_cache, self._limits, self._policies)
        self._live.clear()
        self._refused: list[TokenDelta] = []  # of those whose grammar turned out wrong
        if self._compiling is not None:
            self._compiling.forget()
        self._unfinished = None
        self._is_changing = False
        self._builder.forget()

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def check(self, request: Request) -> None:
        """Whether a request can be served at all; depends on nothing that changes.

        Raises: InvalidRequestError if its tokens are outside the vocabulary or its prompt fills the context;
        CapacityError if it can never fit in the KV pool.
        """
        check_vocabulary(request, self.runner.vocab_size)
        if self._compiling is None and request.params.structured_outputs is not None:
            raise InvalidRequestError("structured_outputs: this engine has no tokenizer; leave it out")
        self.scheduler.check(request)

    def add(self, requests: Sequence[Request]) -> None:
        """Admit requests, all or none of them; choices of one prompt belong in one call. Raises as ``check``."""
        for request in requests:
            self.check(request)
            if request.request_id in self._live:
                raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        for request in requests:
            self._live[request.request_id] = Live(request, RequestClock(request.arrival_s or time.perf_counter()))
        if self._compiling is None:
            self._admit(requests, {})
        elif (grammars := self._compiling.cached(requests)) is not None:
            self._admit(requests, grammars)
        else:
            self._compiling.start(requests)

    def _admit(self, requests: Sequence[Request], grammars: Grammars) -> None:
        for request in requests:
            if request.params.structured_outputs is not None:
                grammar = grammars[request.params.structured_outputs]
                self._live[request.request_id].constraint = grammar.start(request.stop_token_ids)
        self.scheduler.add(requests)

    def _admit_compiled(self) -> None:
        """Those whose grammars have been compiled since the last step."""
        if self._compiling is None or self._compiling.is_idle:
            return
        if not self.scheduler.has_work:
            self._compiling.wait(_COMPILING_WAIT_S)
        self._is_changing = True
        for requests, job in self._compiling.take_done():
            requests = [request for request in requests if self._lives(request)]
            error = job.exception()
            if error is None:
                self._admit(requests, job.result())
            else:
                self._refused += [self._fail(request.request_id, error) for request in requests]
        self._is_changing = False

    def abort(self, request_id: RequestId) -> None:
        """Drop a request in whatever state it is; an unknown id is fine."""
        if self._live.pop(request_id, None) is not None:
            self.scheduler.abort(request_id)

    def abort_all(self) -> None:
        for request_id in list(self._live):
            self.abort(request_id)

    @own_arithmetic()
    def step(self) -> list[TokenDelta]:
        """One step. What goes wrong in a request ends that request with an error, and no other.

        Ctrl-C may come at any moment: before tokens are drawn the next step does this one again; while the books are being
        changed, which takes microseconds, all requests are given up.
        """
        if self._is_changing:
            return self._give_up("the step was interrupted")
        try:
            return self._step()
        except Exception as error:  # a bug of the engine: nobody can tell whose
            _log.exception("a step failed")
            return self._give_up(f"{type(error).__name__}: {error}")

    # ---- one step ---------------------------------------------------------------------------------------------------

    def _step(self) -> list[TokenDelta]:
        start_s = time.perf_counter()
        self._admit_compiled()
        output = self._schedule(start_s)
        scheduled_s = time.perf_counter()
        if not output.scheduled:
            self._unfinished = None
            deltas = self._take_refused() + self._expired(output)
            self.report = self.report_of()
            return deltas
        if output.block_copies:
            self.runner.copy_blocks(output.block_copies)
        batch = self._builder.build(output.scheduled, self.kv_cache.block_tables)
        drawing = self._drawing(output)
        self._masks.start(
            [(live.constraint, live.request.output_token_ids) for live, _, _ in drawing if live.constraint is not None]
        )
        built_s = time.perf_counter()
        failed: dict[RequestId, Exception] = {}
        try:
            logits = self.runner.forward(batch)
        except Exception as error:
            logits = self._forward_one_by_one(output.scheduled, error, failed)
        forwarded_s = time.perf_counter()
        self._score(output, logits, failed)
        owners, results = self._draw(drawing, logits, failed)
        drawn_s = time.perf_counter()
        self._unfinished, self._is_changing = None, True
        deltas = self._take_refused() + self._expired(output)
        for request_id, fault in failed.items():
            deltas.append(self._fail(request_id, fault))
            self.scheduler.abort(request_id)
        if failed:
            output = self._without_the_dead(output)
        ended = self._append(output, owners, results)
        end_s = time.perf_counter()
        query_tokens, hit_tokens = self._accounts.prefix_tokens(output, self._live)
        num_decode, kv_bytes = self._accounts.add_step(
            self.steps.num_steps, output, self._live, start_s, end_s, forwarded_s - built_s
        )
        deltas += token_deltas(owners, results, ended)
        for request_id in ended:
            del self._live[request_id]
        self._is_changing = False
        num_tokens = len(batch.token_ids)
        record = StepRecord(
            start_s, scheduled_s - start_s, built_s - scheduled_s, forwarded_s - built_s, drawn_s - forwarded_s,
            time.perf_counter() - drawn_s, len(output.scheduled), num_tokens - num_decode, num_decode, len(owners),
            len(output.preempted), self.runner.weight_bytes_per_step, kv_bytes,
        )  # fmt: skip
        self.steps.append(record)
        self.report = self.report_of(record, query_tokens, hit_tokens)
        return deltas

    def report_of(
        self, record: StepRecord | None = None, query_tokens: int = 0, hit_tokens: int = 0
    ) -> StepReport:
        """The state now, with the record of a step if it was one that led to it."""
        return StepReport(
            record, self.scheduler.num_running, self.scheduler.num_waiting, self.kv_cache.num_free_blocks,
            self.kv_cache.num_blocks, query_tokens, hit_tokens,
        )  # fmt: skip

    def _schedule(self, now_s: float) -> SchedulerOutput:
        """What this step computes: what an interrupted one left, or the scheduler's next choice."""
        self._is_changing = True
        if self._unfinished is not None:
            self._unfinished = self._without_the_dead(self._unfinished)
            self._restart_orphans(self._unfinished)
            self._is_changing = False
            return self._unfinished
        output = self.scheduler.schedule(now_s)
        for request_id in output.preempted:
            self._live[request_id].clock.recomputes = True
        self._unfinished, self._is_changing = output, False
        return output

    def _without_the_dead(self, output: SchedulerOutput) -> SchedulerOutput:
        lives = self._lives
        forks = {parent: tuple(c for c in children if lives(c)) for parent, children in output.forks.items()}
        return replace(output, scheduled=tuple(s for s in output.scheduled if lives(s.request)), forks=forks)

    def _lives(self, request: Request) -> bool:
        live = self._live.get(request.request_id)
        return live is not None and live.request is request

    def _restart_orphans(self, output: SchedulerOutput) -> None:
        """Choices that were to fork off a request that has left since: nobody computes the rest of their prompt."""
        alive = {s.request.request_id for s in output.scheduled}
        for parent, children in output.forks.items():
            for child in children if parent not in alive else ():
                self.scheduler.abort(child.request_id)
                child.num_computed_tokens = 0
                self.scheduler.add([child])

    def _forward_one_by_one(
        self, scheduled: Sequence[ScheduledRequest], error: Exception, failed: dict[RequestId, Exception]
    ) -> NDArray[np.float32]:
        """After a forward pass failed: each request in a pass of its own, so that only those fail that must.

        Returns float32 [L, vocab_size]; zeros for requests that are now in ``failed``.
        """
        _log.error("a forward pass of %d requests failed", len(scheduled), exc_info=error)
        rows = np.zeros((sum(s.num_logits_rows for s in scheduled), self.runner.vocab_size), np.float32)
        index = 0
        for entry in scheduled:
            try:
                if len(scheduled) == 1:
                    raise error
                logits = self.runner.forward(self._builder.build([entry], self.kv_cache.block_tables))
                rows[index : index + entry.num_logits_rows] = logits
            except Exception as its_own:
                failed[entry.request.request_id] = its_own
            index += entry.num_logits_rows
        return rows

    def _drawing(self, output: SchedulerOutput) -> list[Drawing]:
        """Who draws a token: the requests at their end, and the choices that fork off them."""
        drawing: list[Drawing] = []
        end = 0
        for entry in output.scheduled:
            end += entry.num_logits_rows
            if not entry.draws:
                continue
            request_id = entry.request.request_id
            for request in (entry.request, *output.forks.get(request_id, ())):
                live = self._live[request.request_id]
                if live.sampler is None:
                    live.sampler = self._sampler_state(request)
                drawing.append((live, end - 1, request_id))
        return drawing

    def _score(self, output: SchedulerOutput, logits: NDArray[np.float32], failed: dict[RequestId, Exception]) -> None:
        """Logprobs of prompt tokens, where they are wanted. Adds to ``failed``."""
        begin = 0
        for entry in output.scheduled:
            request, scores = entry.request, entry.scores
            rows = logits[begin : begin + len(scores)]
            begin += entry.num_logits_rows
            if not scores or request.request_id in failed:
                continue
            scored_ids = request.prompt_token_ids[scores.start + 1 : scores.stop + 1]
            num_top = request.params.prompt_logprobs or 0
            try:
                scored = self._sampler.logprobs(rows, scored_ids, num_top, scores.start + 1)
            except Exception as error:
                failed[request.request_id] = error
            else:
                self._live[request.request_id].prompt_logprobs[scores.start : scores.stop] = scored

    def _draw(
        self, drawing: Sequence[Drawing], logits: NDArray[np.float32], failed: dict[RequestId, Exception]
    ) -> tuple[list[Live], list[Draw]]:
        """Their tokens. Adds to ``failed``, which has those whose forward pass failed."""
        masks = iter(self._masks.finish())
        unforwarded = dict(failed)
        owners: list[Live] = []
        rows: list[Row] = []
        logits_rows: list[int] = []
        for live, index, computing_id in drawing:
            assert live.sampler is not None
            mask = None if live.constraint is None else next(masks)
            if computing_id in unforwarded:
                failed[live.request.request_id] = unforwarded[computing_id]
            elif isinstance(mask, Exception):
                failed[live.request.request_id] = mask
            else:
                owners.append(live)
                rows.append(Row(live.sampler, live.request.num_tokens, mask=mask))
                logits_rows.append(index)
        results = draw_rows(self._sampler, logits, rows, logits_rows)
        drawn: list[tuple[Live, Draw]] = []
        for live, result in zip(owners, results, strict=True):
            if not isinstance(result, Draw):
                failed[live.request.request_id] = result
                continue
            try:
                if live.constraint is not None and result.token_id not in live.request.stop_token_ids:
                    live.constraint.push(result.token_id)
            except Exception as error:
                failed[live.request.request_id] = error
            else:
                drawn.append((live, result))
        return [live for live, _ in drawn], [result for _, result in drawn]

    def _sampler_state(self, request: Request) -> SamplerState:
        return SamplerState(
            request.params, seed=request.seed, choice=request.choice, prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids, mirostat_mu=request.mirostat_mu,
            stop_token_ids=request.stop_token_ids, bad_word_ids=request.bad_word_ids, dry_breakers=request.dry_breakers,
            vocab_size=self.runner.vocab_size,
        )  # fmt: skip

    def _append(
        self, output: SchedulerOutput, owners: Sequence[Live], results: Sequence[Draw]
    ) -> dict[RequestId, FinishReason]:
        """Give the drawn tokens to their requests and the scheduler; returns who is at its end, and why."""
        tokens: dict[RequestId, list[int]] = {}
        ended: dict[RequestId, FinishReason] = {}
        for live, result in zip(owners, results, strict=True):
            request, token_id = live.request, result.token_id
            tokens[request.request_id] = [token_id]
            assert live.sampler is not None
            live.sampler.push(token_id, result.mirostat_mu)
            request.mirostat_mu = result.mirostat_mu
            is_complete = live.constraint is not None and live.constraint.is_complete
            if token_id in request.stop_token_ids or is_complete:
                ended[request.request_id] = "stop"
            elif len(request.output_token_ids) + 1 >= request.max_tokens:
                ended[request.request_id] = "length"
        self.scheduler.update(output, tokens, set(ended))
        return ended

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _take_refused(self) -> list[TokenDelta]:
        refused, self._refused = self._refused, []
        return refused

    def _expired(self, output: SchedulerOutput) -> list[TokenDelta]:
        message = "the request's deadline passed"
        return [self._end(i, message, "deadline") for i in output.expired if i in self._live]

    def _fail(self, request_id: RequestId, error: BaseException) -> TokenDelta:
        return self._end(request_id, message_of(error), kind_of(error))

    def _end(self, request_id: RequestId, message: str, kind: ErrorKind) -> TokenDelta:
        """Forget a request that ended with an error."""
        del self._live[request_id]
        return TokenDelta(request_id, (), (), None, message, None, kind)

    def _give_up(self, message: str) -> list[TokenDelta]:
        """End all requests with an error and start over with an empty cache."""
        deltas = self._refused + [TokenDelta(request_id, (), (), None, message) for request_id in self._live]
        self._reset()
        self.report = self.report_of()
        return deltas
