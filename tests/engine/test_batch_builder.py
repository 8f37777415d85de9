"""BatchBuilder: the batches of `build_batch`, though it keeps its arrays from step to step."""

from typing import Any

import numpy as np
import pytest

from fakes import GROUPS, FakeEngine, first_visible, guesses, make_request
from hotloop.engine.batch_builder import BatchBuilder
from hotloop.ops.batch import ForwardBatch
from hotloop.request import RequestId
from hotloop.scheduler.output import ScheduledRequest, SchedulerOutput
from tiny_models import random_tokens


class CheckedEngine(FakeEngine):
    """Runs what the builder makes, and holds it against the plain definition."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.builder = BatchBuilder(
            self.runner.layout.block_sizes,
            max_requests=self.max_num_seqs, max_tokens=self.max_num_batched_tokens, max_model_len=self.max_model_len,
        )  # fmt: skip

    def _batch(self, output: SchedulerOutput) -> ForwardBatch:
        plain = super()._batch(output)
        batch = self.builder.build(output.scheduled, self.kv_cache.block_tables)
        for name in ("token_ids", "positions", "query_start", "seq_lens", "logits_rows"):
            assert getattr(batch, name).dtype == getattr(plain, name).dtype
            np.testing.assert_array_equal(getattr(batch, name), getattr(plain, name), name)
        for g, (group, size) in enumerate(zip(self.groups, self.runner.layout.block_sizes, strict=True)):
            np.testing.assert_array_equal(batch.slot_mapping[g], plain.slot_mapping[g])
            assert batch.block_tables[g].flags.c_contiguous
            for row, s in enumerate(output.scheduled):
                seen = slice(first_visible(s.start, group.window) // size, -(-(s.start + s.num_tokens) // size))
                np.testing.assert_array_equal(batch.block_tables[g][row, seen], plain.block_tables[g][row, seen])
        return batch


def test_blocks_of_rejected_drafts_are_not_kept_for_another_time() -> None:
    """A request in row 1, then in row 0, then in row 1 again, with other blocks where its drafts had been."""
    builder = BatchBuilder([2], max_requests=4, max_tokens=32, max_model_len=100)
    a, b = make_request("a", [1]), make_request("b", [1, 2])
    tables = {"a": [[9, 10, 11, 12]], "b": [[1, 2, 3, 4, 5, 6]]}
    a.output_token_ids, b.output_token_ids = [5] * 9, [5] * 9
    b.draft_token_ids = [7] * 6
    others = [ScheduledRequest(a, 2, 1, True)]
    builder.build([*others, ScheduledRequest(b, 4, 7, True, num_draft_tokens=6)], tables.__getitem__)
    b.draft_token_ids = []
    tables["b"] = [[1, 2, 3]]
    builder.build([ScheduledRequest(b, 5, 1, True)], tables.__getitem__)
    tables["b"] = [[1, 2, 3, 20, 21]]
    batch = builder.build([*others, ScheduledRequest(b, 9, 1, True)], tables.__getitem__)
    assert batch.block_tables[0][1, :5].tolist() == [1, 2, 3, 20, 21]


def test_a_block_that_was_copied_while_the_request_was_in_another_row() -> None:
    """It forks in row 1, copies its last block in row 0, and comes back to row 1 when that block is behind it."""
    builder = BatchBuilder([4], max_requests=4, max_tokens=32, max_model_len=100)
    a, b = make_request("a", [1] * 6), make_request("b", [1] * 6)
    a.output_token_ids, b.output_token_ids = [5] * 9, [5] * 9
    tables = {"a": [[9, 10]], "b": [[1, 2]]}
    others = [ScheduledRequest(a, 6, 1, True)]
    builder.build([*others, ScheduledRequest(b, 0, 6, True)], tables.__getitem__)
    tables["b"] = [[1, 20]]
    for start in (6, 7):
        builder.build([ScheduledRequest(b, start, 1, True)], tables.__getitem__)
    tables["b"] = [[1, 20, 21]]
    batch = builder.build([*others, ScheduledRequest(b, 8, 1, True)], tables.__getitem__)
    assert batch.block_tables[0][1, :3].tolist() == [1, 20, 21]


@pytest.mark.parametrize("again", ["a", "b"])
def test_a_row_that_was_interrupted_belongs_to_nobody(again: str) -> None:
    """a is in the row, and Ctrl-C comes while that of b is written: whichever of them is next finds its own blocks."""

    class Interrupted(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 1:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    builder = BatchBuilder([4], max_requests=1, max_tokens=32, max_model_len=100)
    requests = {name: make_request(name, [1] * 12) for name in "ab"}
    tables = {"a": [[1, 2, 3]], "b": [[4, 5, 6]]}
    builder.build([ScheduledRequest(requests["a"], 0, 12, True)], tables.__getitem__)
    step = [ScheduledRequest(requests["b"], 0, 12, True)]
    with pytest.raises(KeyboardInterrupt):
        builder.build(step, {"b": [Interrupted(tables["b"][0])]}.__getitem__)
    requests["a"].output_token_ids, requests["b"].output_token_ids = [5], [5]
    tables = {"a": [[1, 2, 3, 7]], "b": [[4, 5, 6, 7]]}
    batch = builder.build([ScheduledRequest(requests[again], 12, 1, True)], tables.__getitem__)
    assert batch.block_tables[0][0, :4].tolist() == tables[again][0]


@pytest.mark.parametrize(("caching", "guessing"), [(True, False), (False, False), (True, True), (False, True)])
@pytest.mark.parametrize("groups", GROUPS)
def test_it_makes_the_plain_batches(groups: str, caching: bool, guessing: bool) -> None:
    """Requests come and go, move between rows, fork, share, are preempted and come back."""
    engine = CheckedEngine(
        groups=GROUPS[groups], num_blocks=44, max_num_seqs=8, max_num_batched_tokens=24, max_model_len=200,
        prefix_caching=caching, guess=guesses(GROUPS[groups]) if guessing else None,
    )  # fmt: skip
    shared = random_tokens(0, 30, 50)
    for wave in range(6):
        for i in range(5):
            name = f"{wave}-{i}"
            prompt = shared[: 6 * i] + random_tokens(7 * wave + i, 1 + 3 * i, 50)
            children = [
                make_request(f"{name}/{c}", prompt, 10 + c, choice=c, parent_id=RequestId(name)) for c in range(1, 1 + i % 3)
            ]
            engine.scheduler.add([make_request(name, prompt, 12 + 5 * i), *children])
        for _ in range(7):
            engine.step()
        engine.scheduler.abort(RequestId(f"{wave}-{wave % 5}"))
    engine.run()
    engine.assert_solo()
    assert engine.counts.preemptions > 0 or guessing or groups not in ("one group", "uneven")
    assert engine.counts.forks > 0
    assert engine.counts.partial_chunks > 0
    assert not guessing or engine.counts.drafts > engine.counts.accepted + 20 > 40
