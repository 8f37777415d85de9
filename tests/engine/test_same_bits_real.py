"""`test_same_bits.py` in short on real models, where the model cache holds them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.jobs import ALONE, Exercised, answers, one_by_one, params_of
from hotloop import LLM
from hotloop.scheduler.output import SchedulerOutput
from tiny_models import random_tokens


@pytest.fixture(scope="module", autouse=True)
def home() -> None:
    """The user's own, where the models are."""


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_real_models(name: str, model_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches, chunks, hits, preemptions and forks at once against requests that run alone."""
    path = model_path(name)
    alone = LLM(path, max_model_len=1024, **ALONE)
    begin = alone.tokenizer.encode("The engine that decodes tokens reads all of its weights once for every step it makes, and ")
    jobs = [(begin[: 3 + i] + random_tokens(i, 2 + 7 * (i % 4), 40_000), params_of(i, 5 + i % 5)) for i in range(18)]
    expected = one_by_one(alone, jobs)
    llm = LLM(path, max_model_len=1024, max_num_batched_tokens=64, threads=2)
    core = llm._core
    schedule = core.scheduler.schedule
    preempted = 0

    def preempt_every_third_step(*args: Any) -> SchedulerOutput:
        nonlocal preempted
        if core.steps.num_steps % 3 == 2 and core.scheduler._running:
            core.scheduler._preempt(core.scheduler._running[-1])
            preempted += 1
        return schedule(*args)

    monkeypatch.setattr(core.scheduler, "schedule", preempt_every_third_step)
    assert answers(llm, jobs[::-1]) == expected[::-1]
    assert Exercised(core).largest_batch >= 16
    assert Exercised(core).mixed_steps > 0
    assert preempted >= 3
    prompt, several = begin * 6, replace(jobs[1][1], n=3, max_tokens=6)
    expected = alone.generate([prompt], replace(several, n=1))[0].outputs
    for turn in range(2):
        choices = llm.generate([prompt], several)[0]
        assert turn == 0 or choices.num_cached_tokens > 60
        assert choices.outputs[:1] == expected
