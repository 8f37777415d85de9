"""`test_same_bits.py` with drafts that are right, wrong, or right as far as some point: outputs are those without any (known
faults B62, B64)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.guesses import guess_in_all_engines
from engine.test_same_bits import (  # noqa: F401
    expected,
    jobs,
    test_a_cache_that_is_cold_or_warm,
    test_a_crowd_over_a_few_beginnings_in_a_scarce_pool,
    test_aborted_neighbours_leave_no_trace,
    test_any_order_of_arrival,
    test_batched_with_31_others_in_blocks_of_any_size,
    test_chunks_of_any_size,
    test_every_kv_dtype,
    test_forked_choices_are_those_of_separate_requests,
    test_preempted_at_every_possible_step,
    test_prefix_hits_at_the_edges_of_blocks,
    test_prompts_cut_small_beside_decodes,
    test_resumed_at_every_output_length,
    test_resumed_with_mirostat,
    test_two_threads_and_a_scarce_pool,
    tiny_model,
)
from hotloop.telemetry.steps import StepLog, StepRecord

TOTAL = {"drafts": 0, "accepted": 0}


@pytest.fixture(scope="module", autouse=True)
def guessing() -> Iterator[None]:
    append = StepLog.append

    def count_and_append(log: StepLog, record: StepRecord) -> None:
        TOTAL["drafts"] += record.num_draft_tokens
        TOTAL["accepted"] += record.num_accepted_tokens
        append(log, record)

    with pytest.MonkeyPatch.context() as patch:
        guess_in_all_engines(patch)
        patch.setattr(StepLog, "append", count_and_append)
        yield


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One KV group, and several with a window."""
    return tiny_model(tmp_path_factory.mktemp("models"), request.param)


def test_many_drafts_were_accepted_and_many_were_not() -> None:
    assert TOTAL["accepted"] > 1000
    assert TOTAL["drafts"] - TOTAL["accepted"] > 1000
