"""Anything may happen in any order: the invariants hold after every action, and every output is that of a solo run."""

from dataclasses import fields

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fakes import GROUPS, Counts, FakeEngine, guesses, make_request
from hotloop.errors import CapacityError
from hotloop.request import Request, RequestId
from hotloop.scheduler.policies import ByPriority, FewBesideDecodes, Policies

STEMS = [[(stem * 13 + i * i) % 50 for i in range(30)] for stem in range(3)]
TOTAL = Counts()


class RandomOperations(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(sorted(GROUPS)),
        num_blocks=st.sampled_from([12, 25, 60, 150, 150]),
        block_size=st.sampled_from([2, 4, 5]),
        max_num_seqs=st.sampled_from([24, 24, 24, 3]),
        budget=st.sampled_from([64, 64, 24, 8]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        policies=st.sampled_from([None, Policies(ByPriority(), FewBesideDecodes(8))]),
        guessing=st.booleans(),
    )
    def start(
        self, groups: str, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, prefix_caching: bool,
        policies: Policies | None, guessing: bool,
    ) -> None:  # fmt: skip
        self.engine = FakeEngine(
            GROUPS[groups], num_blocks, block_size, max_num_seqs, budget, prefix_caching=prefix_caching, policies=policies,
            min_shared_tokens=8, step_s=1.0, guess=guesses(GROUPS[groups]) if guessing else None,
        )  # fmt: skip
        self.names: list[RequestId] = []

    def add(self, requests: list[Request]) -> None:
        try:
            self.engine.scheduler.add(requests)
        except CapacityError:
            return
        self.names += [request.request_id for request in requests]

    def next_name(self) -> str:
        return f"r{len(self.names)}"

    @rule(
        stem=st.sampled_from(STEMS),
        shared=st.integers(0, 30),
        own=st.lists(st.integers(0, 49), min_size=1, max_size=6),
        max_tokens=st.integers(1, 15),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "", "salt"]),
        patience_s=st.sampled_from([None, 3, None, 12]),
    )
    def add_one(
        self, stem: list[int], shared: int, own: list[int], max_tokens: int, priority: int, salt: str,
        patience_s: int | None,
    ) -> None:  # fmt: skip
        deadline_s = None if patience_s is None else self.engine.now_s + patience_s
        prompt = [*stem[:shared], *own]
        self.add(
            [
                make_request(
                    self.next_name(), prompt, max_tokens, priority=priority, cache_salt=salt, deadline_s=deadline_s
                )
            ]
        )

    @rule(stem=st.sampled_from(STEMS), count=st.sampled_from([20, 10, 5]), max_tokens=st.integers(8, 25))
    def add_many(self, stem: list[int], count: int, max_tokens: int) -> None:
        """Short prompts with long outputs: they all fit at first, and later they do not."""
        for i in range(count):
            self.add([make_request(self.next_name(), [*stem[:i], i], max_tokens + i)])

    @rule(stem=st.sampled_from(STEMS), length=st.integers(1, 30), lengths=st.lists(st.integers(1, 10), min_size=2, max_size=4))
    def add_choices(self, stem: list[int], length: int, lengths: list[int]) -> None:
        """They share a prompt and fork."""
        parent = self.next_name()
        names = [parent, *(f"{parent}/{i}" for i in range(1, len(lengths)))]
        self.add(
            [
                make_request(name, stem[:length], max_tokens, choice=i, parent_id=None if name == parent else parent)
                for i, (name, max_tokens) in enumerate(zip(names, lengths, strict=True))
            ]
        )

    @rule(token=st.integers(0, 49))
    def starve_the_pool(self, token: int) -> None:
        """A request that needs every block before it ends."""
        kv_cache, length = self.engine.kv_cache, 2
        while length < 40 and kv_cache.blocks_to_hold(length + 1) <= kv_cache.num_blocks:
            length += 1
        self.add([make_request(self.next_name(), [token] * (length // 2), length - length // 2)])

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.scheduler.abort(data.draw(st.sampled_from(self.names)))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.scheduler.preempt(data.draw(st.sampled_from(self.names)))

    @rule()
    def reset_the_prefix_cache(self) -> None:
        self.engine.kv_cache.reset_prefix_cache()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        self.engine.assert_solo()
        assert self.engine.kv_cache.num_free_blocks == self.engine.num_blocks
        for f in fields(Counts):
            mine, total = getattr(self.engine.counts, f.name), getattr(TOTAL, f.name)
            setattr(TOTAL, f.name, max(mine, total) if f.name == "largest_batch" else mine + total)


def test_random_operations() -> None:
    run_state_machine_as_test(
        RandomOperations,
        settings=settings(max_examples=45, stateful_step_count=20, suppress_health_check=list(HealthCheck)),
    )
    assert TOTAL.largest_batch >= 16
    for f in fields(Counts):
        assert getattr(TOTAL, f.name) >= 10, f"{f.name} was hardly exercised: {TOTAL}"
