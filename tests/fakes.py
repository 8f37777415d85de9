"""Fakes: a model without weights whose KV pool is real, and the smallest engine around a scheduler.

`FakeModel` is a pure function: what a token stores depends on its id, its position and on what it sees in every KV group, as
K and V of a real model do. `FakeRunner` computes it by reading and writing slots through block tables and slot mapping;
`solo_tokens` computes it without any pool. A wrong, stale, uncopied or recycled block changes what is read, and so the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.kv_cache.layout import KVGroup, KVLayout
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.ops.batch import Chunk, ForwardBatch, build_batch
from hotloop.request import Request, RequestId
from hotloop.sampling_params import SamplingParams
from hotloop.scheduler.limits import SchedulerLimits
from hotloop.scheduler.output import SchedulerOutput
from hotloop.scheduler.policies import Policies
from hotloop.scheduler.scheduler import Scheduler

VOCAB_SIZE = 50
_MASK = (1 << 64) - 1
_IDS = np.arange(VOCAB_SIZE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_WEIGHTS = np.arange(1, 20_000, 2, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)

# Groups like gemma3's: many layers with a window, few without; 3 and 1 layers make 4 and 12 tokens per block of 4.
ONE_GROUP = (KVGroup((0, 1), 1, 16),)
WITH_WINDOW = (KVGroup((0, 1, 2), 1, 16, window=10), KVGroup((3,), 1, 16))
UNEVEN = (KVGroup((0, 1, 2), 1, 16), KVGroup((3, 4), 1, 16, window=7))  # 4 and 6 tokens per block of 4
ONLY_WINDOW = (KVGroup((0,), 1, 16, window=5),)
GROUPS = {"one group": ONE_GROUP, "with window": WITH_WINDOW, "uneven": UNEVEN, "only window": ONLY_WINDOW}


def mix(*values: int) -> int:
    """A hash of 64 bits."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ value) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def see(values: NDArray[np.uint64]) -> int:
    """A hash of the values in their order."""
    return mix(int((values * _WEIGHTS[: len(values)]).sum(dtype=np.uint64)), len(values))


def token_state(token_id: int, position: int, seen: Sequence[int]) -> int:
    """What a token becomes that sees these values in the KV groups; group g stores mix(state, g)."""
    return mix(token_id, position, *seen)


def uniform(state: int) -> NDArray[np.float32]:
    """VOCAB_SIZE numbers from [0, 1) that depend on all bits of ``state``."""
    bits = (_IDS ^ np.uint64(state)) * np.uint64(0xBF58476D1CE4E5B9)
    return ((bits ^ bits >> np.uint64(29)) * np.uint64(0x94D049BB133111EB) >> np.uint64(40)).astype(np.float32) / 2**24


def draw(logits: NDArray[np.float32], request: Request, ahead: int = 0) -> int:
    """A token that depends on the logits, the seed, the position and the choice. ahead: so many drafts come before it."""
    return int((logits + uniform(mix(request.seed, request.num_tokens + ahead, request.choice))).argmax())


def guesses(groups: Sequence[KVGroup]) -> Callable[[Request], list[int]]:
    """Drafts that are right as far as some point, which differs from step to step; equal requests get equal ones."""
    known: dict[tuple[tuple[int, ...], int, int], list[int]] = {}

    def guess(request: Request) -> list[int]:
        key = tuple(request.prompt_token_ids), request.choice, request.seed
        if len(known.get(key, ())) < request.max_tokens:
            known[key] = solo_tokens(request, groups)
        begin = len(request.output_token_ids)
        luck = mix(*key[0], request.choice, begin)
        ids = known[key][begin : begin + luck % 9]
        return ids if luck % 3 else [*ids[: luck % 4], luck % VOCAB_SIZE, *ids[luck % 4 + 1 :]]

    return guess


def solo_tokens(request: Request, groups: Sequence[KVGroup]) -> list[int]:
    """The output of a request that runs alone, without a pool. ``request`` stays as it is."""
    twin = make_request("solo", request.prompt_token_ids, request.max_tokens, seed=request.seed, choice=request.choice)
    tokens = list(request.prompt_token_ids)
    length = len(tokens) + request.max_tokens - 1
    stored = np.empty((len(groups), length), np.uint64)
    for position in range(length):
        seen = [see(stored[g, first_visible(position, group.window) : position]) for g, group in enumerate(groups)]
        state = token_state(tokens[position], position, seen)
        stored[:, position] = [mix(state, g) for g in range(len(groups))]
        if position + 1 == len(tokens):
            twin.output_token_ids.append(draw(uniform(state), twin))
            tokens.append(twin.output_token_ids[-1])
    return twin.output_token_ids


class FakeRunner:
    """What an engine sees of a model and its KV pool. ``blocks``: uint64 [num_blocks, slots]."""

    isa = "scalar"
    team = None
    vocab_size = VOCAB_SIZE
    weight_bytes_per_step = 0
    max_draft_tokens = 32

    def __init__(
        self, layout: KVLayout, num_blocks: int, *, max_num_seqs: int = 32, max_tokens: int = 64, max_model_len: int = 1000
    ) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.max_num_seqs = max_num_seqs
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len
        self.sizes = layout.block_sizes
        self.blocks = np.random.default_rng(0).integers(0, _MASK, (num_blocks, max(layout.block_sizes)), np.uint64)
        self.num_computed_tokens = 0

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.blocks[destination] = self.blocks[source]

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Store the batch's tokens and return float32 [L, vocab_size]."""
        sizes = self.sizes
        written: Counter[tuple[int, int]] = Counter()
        for slots, size in zip(batch.slot_mapping, sizes, strict=True):
            written.update((int(s) // size, int(s) % size) for s in slots)
            self.blocks[slots // size, slots % size] = 0  # nothing of this step can be read before it is stored
        assert max(written.values()) == 1, "two tokens of a step go to one slot"
        self.num_computed_tokens += len(batch.token_ids)
        states: list[int] = []
        for request, (begin, end) in enumerate(zip(batch.query_start[:-1], batch.query_start[1:], strict=True)):
            where = []
            for tables, size in zip(batch.block_tables, sizes, strict=True):
                positions = np.arange(batch.seq_lens[request])
                where.append((tables[request][positions // size], positions % size))
            for token in range(begin, end):
                states.append(self._store(batch, token, where))
        rows = [uniform(states[row]) for row in batch.logits_rows]
        return np.stack(rows) if rows else np.zeros((0, VOCAB_SIZE), np.float32)

    def _store(self, batch: ForwardBatch, token: int, where: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]]) -> int:
        """where: per group the block and the offset of each of the request's positions."""
        position = int(batch.positions[token])
        seen = []
        for group, (blocks, offsets) in zip(self.layout.groups, where, strict=True):
            visible = slice(first_visible(position, group.window), position)
            seen.append(see(self.blocks[blocks[visible], offsets[visible]]))
        state = token_state(int(batch.token_ids[token]), position, seen)
        for g, size in enumerate(self.sizes):
            slot = int(batch.slot_mapping[g][token])
            self.blocks[slot // size, slot % size] = mix(state, g)
        return state


def make_request(request_id: str, prompt: Sequence[int], max_tokens: int = 4, **fields: Any) -> Request:
    fields = {"seed": 0, "params": SamplingParams(), "stop_token_ids": frozenset(), **fields}
    return Request(RequestId(request_id), list(prompt), max_tokens=max_tokens, **fields)


@dataclass
class Counts:
    """What a run exercised."""

    steps: int = 0
    largest_batch: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    partial_chunks: int = 0
    mixed_steps: int = 0
    forks: int = 0
    copies: int = 0
    expired: int = 0
    drafts: int = 0
    accepted: int = 0


@dataclass
class FakeEngine:
    """A step loop around a scheduler and a `FakeRunner`; every draw's token counts, a request ends at max_tokens."""

    groups: Sequence[KVGroup] = ONE_GROUP
    num_blocks: int = 200
    block_size: int = 4
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 64
    max_model_len: int = 1000
    prefix_caching: bool = True
    policies: Policies | None = None
    min_shared_tokens: int = 64
    counts: Counts = field(default_factory=Counts)
    finished: dict[RequestId, Request] = field(default_factory=dict)
    now_s: float = 0.0
    step_s: float = 0.0  # what a step takes
    guess: Callable[[Request], Sequence[int]] | None = None  # drafts of a request

    def __post_init__(self) -> None:
        layout = KVLayout(tuple(self.groups), self.block_size, "f16")
        self.runner = FakeRunner(layout, self.num_blocks)
        self.kv_cache = KVCacheManager(layout, self.num_blocks, prefix_caching=self.prefix_caching)
        limits = SchedulerLimits(
            self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len, max_draft_tokens=32,
            min_shared_tokens=self.min_shared_tokens,
        )  # fmt: skip
        self.scheduler = Scheduler(self.kv_cache, limits, self.policies)

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule(self.now_s, self._drafts())
        self._count(output)
        if output.scheduled:
            self.runner.copy_blocks(output.block_copies)
            logits = self.runner.forward(self._batch(output))
            self._update(output, logits)
        self.now_s += self.step_s
        self.scheduler.check_invariants()
        return output

    def _drafts(self) -> dict[RequestId, Sequence[int]]:
        """Of requests that will be at their last token, and of others, whose drafts are to be forgotten."""
        if self.guess is None:
            return {}
        requests = [entry.request for entry in self.scheduler._entries.values()]
        return {r.request_id: self.guess(r)[: r.max_tokens - len(r.output_token_ids) - 1] for r in requests}

    def _batch(self, output: SchedulerOutput) -> ForwardBatch:
        chunks = [
            Chunk(
                s.request.token_ids(s.start, s.start + s.num_tokens), s.start,
                self.kv_cache.block_tables(s.request.request_id),
                "all" if s.num_draft_tokens else "last" if s.draws else "none",
            )
            for s in output.scheduled
        ]  # fmt: skip
        return build_batch(chunks, self.runner.sizes)

    def _update(self, output: SchedulerOutput, logits: NDArray[np.float32]) -> None:
        rows = iter(logits)
        tokens: dict[RequestId, list[int]] = {}
        finished = set()
        for s in output.scheduled:
            if not s.draws:
                continue
            own = [next(rows) for _ in range(1 + s.num_draft_tokens)]
            for request in (s.request, *output.forks.get(s.request.request_id, ())):
                drawn = tokens[request.request_id] = self._draw(own, request)
                if len(request.output_token_ids) + len(drawn) == request.max_tokens:
                    finished.add(request.request_id)
                    self.finished[request.request_id] = request
        assert next(rows, None) is None, "a row of logits for nobody"
        self.scheduler.update(output, tokens, finished)

    def _draw(self, rows: Sequence[NDArray[np.float32]], request: Request) -> list[int]:
        """A token of each row, as long as they are the drafts that the rows after them saw."""
        drafts = request.draft_token_ids
        assert len(rows) == 1 + len(drafts)
        drawn = [draw(rows[0], request)]
        while len(drawn) < len(rows) and drawn[-1] == drafts[len(drawn) - 1]:
            drawn.append(draw(rows[len(drawn)], request, ahead=len(drawn)))
        self.counts.accepted += len(drawn) - 1
        return drawn

    def _count(self, output: SchedulerOutput) -> None:
        counts = self.counts
        counts.steps += 1
        counts.largest_batch = max(counts.largest_batch, len(output.scheduled))
        counts.preemptions += len(output.preempted)
        counts.partial_chunks += sum(not s.draws for s in output.scheduled)
        sizes = {s.num_tokens == 1 for s in output.scheduled}
        counts.mixed_steps += len(sizes) == 2
        counts.forks += sum(len(children) for children in output.forks.values())
        counts.copies += len(output.block_copies)
        counts.expired += len(output.expired)
        counts.drafts += sum(s.num_draft_tokens for s in output.scheduled)

    def run(self, requests: Sequence[Request] = (), max_steps: int = 10_000) -> dict[RequestId, list[int]]:
        """Add the requests, run until nothing is left, return all outputs so far."""
        self.scheduler.add(requests)
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, f"not done after {max_steps} steps"
        self.counts.hit_tokens += sum(request.num_prefix_hit_tokens for request in self.finished.values())
        return {request_id: request.output_token_ids for request_id, request in self.finished.items()}

    def assert_solo(self) -> None:
        """Every finished request has the output it has when it runs alone."""
        for request in self.finished.values():
            assert request.output_token_ids == solo_tokens(request, self.groups), request.request_id
