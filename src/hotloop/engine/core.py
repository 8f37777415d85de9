"""EngineCore: add, abort, step. Token ids in, token deltas out; the one owner of requests, blocks and the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hotloop.config import EngineConfig
from hotloop.engine.accounts import Accounts, Drawn, Live, token_deltas
from hotloop.engine.arithmetic import own_arithmetic
from hotloop.engine.batch_builder import BatchBuilder
from hotloop.engine.checks import check_vocabulary
from hotloop.engine.compiling import Compiling, Grammars
from hotloop.engine.drafting import can_have_drafts, propose
from hotloop.engine.drawing import Drawer
from hotloop.engine.faults import kind_of, message_of
from hotloop.engine.runner import Runner
from hotloop.errors import InvalidRequestError
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.request import ErrorKind, Request, RequestId, TokenDelta
from hotloop.sampling.grammar import GrammarCompiler
from hotloop.scheduler.limits import SchedulerLimits
from hotloop.scheduler.output import ScheduledRequest, SchedulerOutput
from hotloop.scheduler.policies import ByPriority, FewBesideDecodes, FirstComeFirstServed, Policies
from hotloop.scheduler.scheduler import Scheduler
from hotloop.spec_decode.forced import ForcedTokens
from hotloop.spec_decode.proposer import Proposer
from hotloop.telemetry.steps import StepLog, StepRecord, StepReport
from hotloop.telemetry.timings import RequestClock

_log = logging.getLogger(__name__)

_COMPILING_WAIT_S = 0.005  # a step's, where nobody has work but those that compile


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
            max_model_len=runner.max_model_len, max_draft_tokens=runner.max_draft_tokens,
        )  # fmt: skip
        layout = runner.layout
        self._builder = BatchBuilder(
            layout.block_sizes,
            max_requests=runner.max_num_seqs, max_tokens=runner.max_tokens, max_model_len=runner.max_model_len,
        )  # fmt: skip
        self._proposer: Proposer | None = ForcedTokens() if config.speculation == "forced" else None
        self._drawer = Drawer(runner.isa, runner.vocab_size, runner.team)
        self._compiling = None if grammars is None else Compiling(grammars)
        self._accounts = Accounts(layout)
        self._live: dict[RequestId, Live] = {}
        self._may_draft: list[Live] = []  # those that drew in the latest step
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
        self._may_draft.clear()
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
        for name in ("structured_outputs", "thinking_budget") if self._compiling is None else ():
            if getattr(request.params, name) is not None:
                raise InvalidRequestError(f"{name}: this engine has no tokenizer; leave it out")
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
            live = self._live[request.request_id]
            if self._compiling is not None:
                live.constraint = self._compiling.constraint(request, grammars)
            live.has_drafts = can_have_drafts(live, self._proposer)
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
        drawing = self._drawer.start(output, self._live)
        built_s = time.perf_counter()
        failed: dict[RequestId, Exception] = {}
        try:
            logits = self.runner.forward(batch)
        except Exception as error:
            logits = self._forward_one_by_one(output.scheduled, error, failed)
        forwarded_s = time.perf_counter()
        self._drawer.score(output, self._live, logits, failed)
        drawn = self._drawer.finish(drawing, logits, failed)
        drawn_s = time.perf_counter()
        self._unfinished, self._is_changing = None, True
        deltas = self._take_refused() + self._expired(output)
        for request_id, fault in failed.items():
            deltas.append(self._fail(request_id, fault))
            self.scheduler.abort(request_id)
        if failed:
            output = self._without_the_dead(output)
        ended = self._append(output, drawn)
        end_s = time.perf_counter()
        query_tokens, hit_tokens = self._accounts.prefix_tokens(output, self._live)
        num_decode, kv_bytes = self._accounts.add_step(
            self.steps.num_steps, output, self._live, start_s, end_s, forwarded_s - built_s
        )
        deltas += token_deltas(drawn)
        self._may_draft = [one.live for one in drawn if one.live.has_drafts and one.finish is None]
        num_drafts, num_accepted, num_drawn = output.num_draft_tokens, 0, len(drawn)
        if num_drafts:
            num_accepted = sum(one.num_accepted_tokens for one in drawn)
            num_drawn = sum(len(one.token_ids) for one in drawn)
        record = StepRecord(
            start_s, scheduled_s - start_s, built_s - scheduled_s, forwarded_s - built_s, drawn_s - forwarded_s,
            time.perf_counter() - drawn_s, len(output.scheduled), len(batch.token_ids) - num_decode - num_drafts, num_decode,
            num_drawn, len(output.preempted), num_drafts, num_accepted, self.runner.weight_bytes_per_step, kv_bytes,
        )  # fmt: skip
        self.steps.append(record)
        self.report = self.report_of(record, query_tokens, hit_tokens)
        for request_id in ended:
            del self._live[request_id]
        self._is_changing = False  # last: who is interrupted before has handed out nothing
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
        drafts = None
        if self._unfinished is None and self._proposer is not None and self._may_draft:
            may_draft = [live for live in self._may_draft if self._lives(live.request)]
            drafts = propose(self._proposer, may_draft, self.runner.vocab_size)
        self._is_changing = True
        if self._unfinished is not None:
            output = self._without_the_dead(self._unfinished)
            self._restart_orphans(output)
        else:
            output = self.scheduler.schedule(now_s, drafts)
            for request_id in output.preempted:
                self._live[request_id].clock.recomputes = True
        self._unfinished, self._is_changing = output, False
        return output

    def _without_the_dead(self, output: SchedulerOutput) -> SchedulerOutput:
        lives = self._lives
        forks = {parent: tuple(c for c in children if lives(c)) for parent, children in output.forks.items()}
        scheduled = tuple(s for s in output.scheduled if lives(s.request))
        num_drafts = sum(s.num_draft_tokens for s in scheduled)
        return replace(output, scheduled=scheduled, forks=forks, num_draft_tokens=num_drafts)

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

    def _append(self, output: SchedulerOutput, drawn: Sequence[Drawn]) -> list[RequestId]:
        """Give the drawn tokens to their requests and the scheduler; returns who is at its end."""
        tokens: dict[RequestId, list[int]] = {}
        for live, token_ids, draws, _, _ in drawn:
            request, sampler = live.request, live.sampler
            assert sampler is not None
            for draw in draws:
                sampler.push(draw.token_id, draw.mirostat_mu)
                request.mirostat_mu = draw.mirostat_mu
            tokens[request.request_id] = token_ids
        ended = [one.live.request.request_id for one in drawn if one.finish is not None]
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
