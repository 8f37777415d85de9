"""Scheduler: which tokens of which requests the next step computes. A deterministic state machine over counts."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping, Sequence

from hotloop.errors import InvalidRequestError
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.request import Request, RequestId
from hotloop.scheduler.check_size import check_size
from hotloop.scheduler.drafting import Drafts, with_drafts
from hotloop.scheduler.entry import Entry, key_of
from hotloop.scheduler.lazy_heap import LazyHeap
from hotloop.scheduler.limits import SchedulerLimits
from hotloop.scheduler.output import ScheduledRequest, SchedulerOutput
from hotloop.scheduler.policies import Policies
from hotloop.scheduler.shared_tokens import num_shared_tokens


class Scheduler:
    """Requests wait, run, may be preempted, and leave. Per step: `schedule`, the forward and the draws, `update`.

    There are no phases: a step lets num_computed_tokens of the running requests catch up with num_tokens, within the
    budget of tokens and the free blocks. The first request in order can always go on, so all of them end.
    """

    def __init__(self, kv_cache: KVCacheManager, limits: SchedulerLimits, policies: Policies | None = None) -> None:
        self.kv_cache = kv_cache
        self.limits = limits
        self.policies = policies or Policies()
        self._entries: dict[RequestId, Entry] = {}
        self._running: list[Entry] = []  # in order
        self._waiting: LazyHeap[Entry] = LazyHeap()
        self._deadlines: LazyHeap[Entry] = LazyHeap()
        self.max_request_tokens = 1 + kv_cache.most_tokens(self.limits.max_model_len - 1)  # the last one's K/V is not stored
        self._num_arrivals = 0
        self._epoch = 0  # of the prospects of those that did not fit
        self._nobody_fits = False  # since then

    @property
    def has_work(self) -> bool:
        return bool(self._entries)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._entries) - len(self._running)

    def check(self, request: Request) -> None:
        """Whether a request can be served at all, with nothing else in the way.

        Raises: InvalidRequestError if its id is in use, its prompt is empty or its tokens exceed the context;
        CapacityError if it can never fit in the KV pool.
        """
        if request.request_id in self._entries:
            raise InvalidRequestError(f"a request with the id {request.request_id!r} is running; choose another id")
        check_size(request, self.limits.max_model_len, self.max_request_tokens)

    def add(self, requests: Sequence[Request]) -> None:
        """Admit requests, in order of arrival; all of them or, if one is refused, none. Raises as `check`.

        A request whose parent_id names one with the same prompt that has not drawn a token yet waits for it and forks.
        """
        if len({request.request_id for request in requests}) < len(requests):
            raise InvalidRequestError("two of the requests have the same id; give each its own")
        for request in requests:
            self.check(request)
        for request in requests:
            entry = Entry(request, self.policies.order.key(request, self._num_arrivals))
            self._num_arrivals += 1
            self._entries[request.request_id] = entry
            if request.deadline_s is not None:
                self._deadlines.push(request.request_id, request.deadline_s, entry)
            parent = self._entries.get(request.parent_id) if request.parent_id is not None else None
            if parent is not None and self._shares_prompt(parent.request, request):
                self._hold(entry, parent)
            else:
                self._wait(entry)

    @staticmethod
    def _shares_prompt(parent: Request, child: Request) -> bool:
        return (
            parent is not child
            and not parent.output_token_ids
            and not child.output_token_ids
            and parent.cache_salt == child.cache_salt
            and parent.prompt_token_ids == child.prompt_token_ids
        )

    def abort(self, request_id: RequestId) -> None:
        """Drop a request in whatever state it is; an unknown id is fine."""
        entry = self._entries.get(request_id)
        if entry is not None:
            self._leave(entry)

    def preempt(self, request_id: RequestId) -> bool:
        """Between steps: take the blocks of a running request, as happens when they are short. False if it is not running."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state != "running":
            return False
        self._preempt(entry)
        return True

    def schedule(self, now_s: float, drafts: Drafts | None = None) -> SchedulerOutput:
        """Decide the next step and allocate its blocks. now_s: on the clock of the requests' deadline_s. drafts: what may come
        after the last token of requests; as many of them are verified as have room, and the others are forgotten.

        With work at hand there is always something scheduled, unless all of it has just expired.
        """
        expired = self._expire(now_s)
        self._admit()
        scheduled, preempted = self._allocate(self._shares())
        forks = self._fork(scheduled)
        num_drafts = 0
        if drafts:
            scheduled = self._with_drafts(scheduled, drafts, forks)
            num_drafts = sum(s.num_draft_tokens for s in scheduled)
        copies = tuple(self.kv_cache.block_copies())
        return SchedulerOutput(tuple(scheduled), forks, copies, preempted, expired, num_drafts)

    def update(
        self,
        output: SchedulerOutput,
        tokens: Mapping[RequestId, Sequence[int]],
        finished: Collection[RequestId] = frozenset(),
    ) -> None:
        """The step ``output`` is done: its K and V are stored and ``tokens`` are drawn. Once after every `schedule`, also
        if the step failed: then with all of its requests in ``finished``.

        tokens: the new token ids per request; they are appended to its output here. Those but the last are the request's
        first drafts. finished: requests that end. One without a new token has failed: what the step stored for it does not
        enter the prefix cache.
        """
        for request, start, num_tokens, _, scores, num_drafts in output.scheduled:
            request.num_scored_tokens += len(scores)
            if num_drafts:
                self._settle_drafts(request, start, tokens, finished)
                continue
            self._advance(request, start + num_tokens, tokens, finished)
            if num_tokens > 1:
                self._prospects_changed()  # the prefix cache knows more of a prompt
        for children in output.forks.values():
            for request in children:
                self._advance(request, request.num_computed_tokens, tokens, finished)
        for request_id in sorted(finished):
            self.abort(request_id)

    def _advance(
        self,
        request: Request,
        num_computed: int,
        tokens: Mapping[RequestId, Sequence[int]],
        finished: Collection[RequestId],
    ) -> bool:
        """Whether the request is still there."""
        request_id = request.request_id
        entry = self._entries.get(request_id)
        if entry is None or entry.request is not request or entry.state != "running":  # aborted meanwhile
            return False
        drawn = tokens.get(request_id, ())
        request.num_computed_tokens = num_computed
        request.output_token_ids.extend(drawn)
        if drawn or request_id not in finished:
            self.kv_cache.computed(request_id, request.token_ids, num_computed)
        return True

    def _settle_drafts(
        self,
        request: Request,
        start: int,
        tokens: Mapping[RequestId, Sequence[int]],
        finished: Collection[RequestId],
    ) -> None:
        """Computed are the request's last token and the drafts that were accepted."""
        request.draft_token_ids = []
        num_drawn = len(tokens.get(request.request_id, ()))
        if self._advance(request, start + max(1, num_drawn), tokens, finished):
            self.kv_cache.trim(request.request_id)

    # The queue

    def _wait(self, entry: Entry) -> None:
        entry.state = "waiting"
        entry.tried_at = -1
        self._waiting.push(entry.request.request_id, entry.key, entry)
        self._nobody_fits = False

    def _hold(self, entry: Entry, parent: Entry) -> None:
        entry.state = "held"
        entry.parent = parent
        parent.children.append(entry)

    def _orphan(self, children: list[Entry]) -> None:
        """Their parent will not compute the prompt for them: the first of them does, the others wait for it."""
        for child in children:
            child.parent = None
        if children:
            self._wait(children[0])
            for child in children[1:]:
                self._hold(child, children[0])

    def _release(self, entry: Entry) -> None:
        """Give up the blocks of a running request."""
        self._running.remove(entry)
        self.kv_cache.free(entry.request.request_id)
        self._prospects_changed()

    def _prospects_changed(self) -> None:
        """A waiting request that did not fit may fit now."""
        self._epoch += 1
        self._nobody_fits = False

    def _leave(self, entry: Entry) -> None:
        request_id = entry.request.request_id
        del self._entries[request_id]
        self._deadlines.drop(request_id)
        if entry.state == "running":
            self._release(entry)
        elif entry.state == "waiting":
            self._waiting.drop(request_id)
            self._nobody_fits = False
        elif entry.parent is not None:
            entry.parent.children.remove(entry)
        children, entry.children = entry.children, []
        self._orphan(children)

    def _expire(self, now_s: float) -> tuple[RequestId, ...]:
        expired = []
        while (first := self._deadlines.peek()) is not None and first[0] <= now_s:
            expired.append(first[1].request.request_id)
            self._leave(first[1])
        return tuple(expired)

    # A step

    def _admit(self) -> None:
        """Let waiting requests start while there are slots, tokens for them in this step, and blocks for all that they
        have to compute."""
        slots = self.limits.max_running - len(self._running)
        if slots <= 0 or self._nobody_fits or not self._waiting:
            return
        budget, floor = self._budget_left()
        free = self._unclaimed_blocks()
        passed: list[Entry] = []
        while slots > 0 and budget > 0:
            first = self._waiting.peek()
            if first is None:
                self._nobody_fits = True
                break
            entry = first[1]
            missing = self._start(entry, free)
            if missing is None:
                passed.append(self._waiting.pop())
                if entry.num_bypassed >= self.limits.max_bypasses or len(passed) > self.limits.lookahead:
                    self._nobody_fits = True
                    break
                continue
            self._waiting.pop()
            for other in passed:
                other.num_bypassed += 1
            slots -= 1
            free -= missing
            budget -= min(entry.request.num_tokens - entry.request.num_computed_tokens, floor)
        for entry in passed:
            self._waiting.push(entry.request.request_id, entry.key, entry)

    def _budget_left(self) -> tuple[int, int]:
        """Tokens of this step that running requests leave, and how many of them a prefill may count on."""
        needs = [entry.request.num_tokens - entry.request.num_computed_tokens for entry in self._running]
        budget = self._prefill_budget(needs.count(1))
        floor = self.policies.prefill_share.floor(budget)
        return budget - sum(min(need, floor) for need in needs if need > 1), floor

    def _prefill_budget(self, num_decodes: int) -> int:
        return self.policies.prefill_budget.tokens(self.limits.max_num_batched_tokens - num_decodes, num_decodes)

    def _unclaimed_blocks(self) -> int:
        """Free blocks that running requests do not need for the tokens they have."""
        chunk = self.limits.max_num_batched_tokens
        missing = self.kv_cache.num_missing_blocks
        return self.kv_cache.num_free_blocks - sum(
            missing(entry.request.request_id, entry.request.num_tokens, chunk) for entry in self._running
        )

    def _start(self, entry: Entry, free: int) -> int | None:
        """Start a waiting request if ``free`` blocks are enough: for all of its tokens, and one more per running request
        to grow into, so that nobody is preempted soon; and if nobody is computing its beginning just now, which it can
        have for nothing a little later. With nothing running it starts in any case.

        Returns the blocks it will take, or None.
        """
        if self._running and entry.tried_at == self._epoch:
            return None
        request = entry.request
        hit = None
        if not request.wants_scores:  # a prefix that is there already has no logits
            hit = self.kv_cache.match_prefix(request.token_ids(0, request.num_tokens), request.cache_salt)
        missing = self.kv_cache.num_missing_after(hit, request.num_tokens, self.limits.max_num_batched_tokens)
        if self._running and (
            missing + len(self._running) > free or self._is_being_computed(request, hit.num_tokens if hit else 0)
        ):
            entry.tried_at = self._epoch
            return None
        self.kv_cache.start(request.request_id, request.cache_salt, hit)
        request.num_computed_tokens = hit.num_tokens if hit else 0
        if request.num_preemptions == 0:
            request.num_prefix_hit_tokens = min(request.num_computed_tokens, len(request.prompt_token_ids))
        entry.num_bypassed = 0
        self._run(entry)
        return missing

    def _is_being_computed(self, request: Request, num_hit_tokens: int) -> bool:
        """Whether a running request is computing a good part of this one's beginning, and is not yet through with it."""
        if not self.kv_cache.prefix_caching or request.wants_scores:
            return False
        for entry in self._running:
            other = entry.request
            if other.num_computed_tokens + 1 < other.num_tokens and other.cache_salt == request.cache_salt:
                shared = num_shared_tokens(request, other, self.kv_cache.hit_granularity)
                if (
                    shared > max(other.num_computed_tokens, num_hit_tokens)
                    and shared - other.num_prefix_hit_tokens >= self.limits.min_shared_tokens
                ):
                    return True
        return False

    def _run(self, entry: Entry) -> None:
        entry.state = "running"
        insort(self._running, entry, key=key_of)

    def _shares(self) -> list[int]:
        """Tokens for each running request: one for those that need one, and the prefills share the rest."""
        shares = [entry.request.num_tokens - entry.request.num_computed_tokens for entry in self._running]
        prefills = [i for i, need in enumerate(shares) if need > 1]
        if prefills:
            budget = self._prefill_budget(len(shares) - len(prefills))
            needs = [shares[i] for i in prefills]
            for i, share in zip(prefills, self.policies.prefill_share.share(budget, needs), strict=True):
                shares[i] = share
            self._limit_scores(shares, prefills)
        return shares

    def _limit_scores(self, shares: list[int], prefills: Sequence[int]) -> None:
        """A step has max_num_seqs rows of logits: one for each running request, the others for prompts that want scores."""
        spare = self.limits.max_num_seqs - len(self._running)
        for i in prefills:
            request = self._running[i].request
            if request.wants_scores:
                unscored = max(0, shares[i] - max(0, request.num_scored_tokens - request.num_computed_tokens))
                excess = max(0, unscored - 1 - spare)
                shares[i] -= excess
                spare -= max(0, unscored - excess - 1)

    def _allocate(self, shares: list[int]) -> tuple[list[ScheduledRequest], tuple[RequestId, ...]]:
        """Blocks for the step, in order: one that is short of them takes those of a later one, and the last one waits."""
        singles: list[ScheduledRequest] = []
        chunks: list[ScheduledRequest] = []
        preempted: list[RequestId] = []
        running, allocate = self._running, self.kv_cache.allocate
        i = 0
        while i < len(running):
            request = running[i].request
            start, count = request.num_computed_tokens, shares[i]
            while count and not allocate(request.request_id, start + count):
                count //= 2
            if count:
                end = start + count
                scheduled = ScheduledRequest(
                    request, start, count, end == request.num_tokens, _scores(request, start, end)
                )
                (singles if count == 1 else chunks).append(scheduled)
            elif shares[i] and i + 1 < len(running):
                later = i + 1 + self.policies.victim.choose([entry.request for entry in running[i + 1 :]])
                preempted.append(running[later].request.request_id)
                del shares[later]
                self._preempt(running[later])
                continue
            i += 1
        assert singles or chunks or not running, "the first in order can always go on"
        return singles + chunks, tuple(preempted)

    def _preempt(self, entry: Entry) -> None:
        """Its blocks are free again, its tokens will be recomputed; it keeps its place in the order."""
        self._release(entry)
        entry.request.num_computed_tokens = 0
        entry.request.num_preemptions += 1
        self._wait(entry)

    def _fork(self, scheduled: Sequence[ScheduledRequest]) -> dict[RequestId, tuple[Request, ...]]:
        """Children of requests whose prompt ends in this step start with its blocks, as far as there are slots."""
        forks: dict[RequestId, tuple[Request, ...]] = {}
        for s in scheduled:
            parent = self._entries[s.request.request_id]
            if not (s.draws and parent.children):
                continue
            children, parent.children = parent.children, []
            slots = max(0, self.limits.max_running - len(self._running))
            for child in children[:slots]:
                child.parent = None
                child.request.num_computed_tokens = s.start + s.num_tokens
                self.kv_cache.fork(s.request.request_id, child.request.request_id, s.start + s.num_tokens)
                self._run(child)
            self._orphan(children[slots:])
            if slots:
                forks[s.request.request_id] = tuple(child.request for child in children[:slots])
        return forks

    def _with_drafts(
        self, scheduled: Sequence[ScheduledRequest], drafts: Drafts, forks: Mapping[RequestId, tuple[Request, ...]]
    ) -> list[ScheduledRequest]:
        """Drafts lengthen the step of those that have none as much as prefills do, and share their budget."""
        drafts = {request_id: ids for request_id, ids in drafts.items() if request_id not in forks}
        decodes = [s for s in scheduled if s.num_tokens == 1]
        num_tokens = sum(s.num_tokens for s in scheduled)
        num_others = sum(s.request.request_id not in drafts for s in decodes)
        beside = self._prefill_budget(num_others) - (num_tokens - len(decodes))
        budget = min(self.limits.max_draft_tokens, self.limits.max_num_batched_tokens - num_tokens, beside)
        return with_drafts(scheduled, drafts, max(0, budget), self.kv_cache.allocate)

    def check_invariants(self) -> None:
        """For tests, and for an idle engine: between `update` and `schedule`."""
        self.kv_cache.check_invariants()
        assert self.kv_cache.num_requests == len(self._running), "only running requests hold blocks"
        assert len(self._running) <= self.limits.max_running
        assert [e.key for e in self._running] == sorted(e.key for e in self._running)
        running = {e.request.request_id for e in self._running}
        held = {child.request.request_id: e for e in self._entries.values() for child in e.children}
        assert len(self._waiting) + len(running) + len(held) == len(self._entries)
        for request_id, entry in self._entries.items():
            request = entry.request
            assert request.request_id == request_id
            assert (request_id in self._waiting) == (entry.state == "waiting")
            assert (request_id in running) == (entry.state == "running")
            assert (request_id in held) == (entry.state == "held")
            assert entry.parent is held.get(request_id)
            assert request.num_computed_tokens < request.num_tokens
            assert not request.draft_token_ids
            assert entry.state == "running" or request.num_computed_tokens == 0
        for entry in self._running:
            num_computed, tables = entry.request.num_computed_tokens, self.kv_cache.block_tables(entry.request.request_id)
            for size, table in zip(self.kv_cache.layout.block_sizes, tables, strict=True):
                assert len(table) == -(-num_computed // size), "a block without a computed token"
        if not self._entries:
            assert self.kv_cache.num_free_blocks == self.kv_cache.num_blocks
            assert not len(self._deadlines)


def _scores(request: Request, start: int, end: int) -> range:
    """Which of the positions [start, end) are to be scored: not those before, and not the last, which draws."""
    if not request.wants_scores:
        return range(0)
    return range(max(start, request.num_scored_tokens), min(end, len(request.prompt_token_ids) - 1))
