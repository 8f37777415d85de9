"""Logprobs of a prompt's tokens are those of the same tokens drawn, whatever is cached, beside it, or happens on the way."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import assert_idle
from hotloop import LLM, SamplingParams
from hotloop.errors import HotloopError
from hotloop.request import Logprob, RequestOutput
from tiny_models import random_tokens

PARAMS = SamplingParams(temperature=0.9, seed=5, max_tokens=4, logprobs=3, prompt_logprobs=3)
Entries = list[dict[int, Logprob] | None]


def ask(llm: LLM, prompt: list[int], params: SamplingParams = PARAMS) -> RequestOutput:
    (output,) = llm.generate([prompt], params)
    return output


def drawn_one_by_one(llm: LLM, prompt: list[int]) -> Entries:
    """Each token of the prompt as what comes after those before it."""
    entries: Entries = [None]
    for size in range(1, len(prompt)):
        params = SamplingParams(
            temperature=0, max_tokens=1, logprobs=3, allowed_token_ids=[prompt[size]], ignore_eos=True,
            skip_special_tokens=False,
        )  # fmt: skip
        (choice,) = ask(llm, prompt[:size], params).outputs
        assert choice.logprobs is not None
        entries += choice.logprobs
    return entries


def test_they_are_those_of_drawn_tokens(llm: LLM) -> None:  # known fault B21
    prompt = random_tokens(1, 24)
    output = ask(llm, prompt)
    assert output.prompt_logprobs == drawn_one_by_one(llm, prompt)
    assert output.outputs == ask(llm, prompt, replace(PARAMS, prompt_logprobs=None)).outputs
    assert ask(llm, prompt, replace(PARAMS, prompt_logprobs=None)).prompt_logprobs is None
    assert_idle(llm)


@pytest.mark.parametrize("top", [0, 3])
def test_one_entry_per_token_and_none_for_the_first(llm: LLM, top: int) -> None:
    for length in (1, 2, 3):
        prompt = random_tokens(length, length)
        entries = ask(llm, prompt, replace(PARAMS, prompt_logprobs=top)).prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        assert [next(iter(entry)) for entry in entries[1:] if entry is not None] == prompt[1:]


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_a_prefix_that_is_cached_changes_nothing(model: Path, length: int) -> None:  # known fault B19
    prompt = random_tokens(length, length)
    expected = ask(LLM(model, enable_prefix_caching=False), prompt)
    llm = LLM(model, block_size=16)
    ask(llm, prompt, replace(PARAMS, prompt_logprobs=None))
    for _ in range(2):
        output = ask(llm, prompt)
        assert output.prompt_logprobs == expected.prompt_logprobs
        assert output.outputs == expected.outputs
        assert output.num_cached_tokens == 0
    assert (ask(llm, prompt, replace(PARAMS, prompt_logprobs=None)).num_cached_tokens > 0) == (length >= 16)


@pytest.mark.parametrize(
    "options", [{"max_num_seqs": 1}, {"max_num_seqs": 5}, {"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 64}]
)
def test_many_at_once_in_chunks(model: Path, options: dict[str, Any]) -> None:
    """More rows of logits than a step has, beside requests that want none."""
    prompts = [random_tokens(i, 1 + 7 * i % 50) for i in range(12)]
    params = [replace(PARAMS, prompt_logprobs=i % 3 or None, seed=i, max_tokens=8) for i in range(12)]
    alone = LLM(model)
    expected = [ask(alone, prompt, p) for prompt, p in zip(prompts, params, strict=True)]
    llm = LLM(model, **options)
    for got, wanted in zip(llm.generate(prompts, params), expected, strict=True):
        assert got.prompt_logprobs == wanted.prompt_logprobs
        assert got.outputs == wanted.outputs
    assert_idle(llm)


@pytest.mark.parametrize("at", [2, 4, 9])
def test_preempted_in_the_middle_of_the_prompt(model: Path, at: int) -> None:
    prompt = random_tokens(3, 60)
    expected = ask(LLM(model), prompt).prompt_logprobs
    llm = LLM(model, max_num_batched_tokens=8)
    step, steps = llm._core._step, count(1)

    def preempting() -> Any:
        if next(steps) == at:
            (live,) = llm._core._live.values()
            assert llm._core.scheduler.preempt(live.request.request_id)
            assert live.request.num_computed_tokens == 0
        return step()

    llm._core._step = preempting  # type: ignore[method-assign]
    assert ask(llm, prompt).prompt_logprobs == expected
    assert next(steps) > at
    assert_idle(llm)


def test_choices_share_them(llm: LLM) -> None:
    prompt = random_tokens(4, 20)
    output = ask(llm, prompt, replace(PARAMS, n=3))
    assert output.prompt_logprobs == ask(llm, prompt).prompt_logprobs
    assert len(output.outputs) == 3


def test_broken_logits_of_a_prompt_end_that_request(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model)
    forward = llm._runner.forward

    def breaking(batch: Any) -> np.ndarray:
        logits = forward(batch).copy()
        if len(logits) > 10:
            logits[5, 7] = np.nan
        return logits

    monkeypatch.setattr(llm._runner, "forward", breaking)
    with pytest.raises(HotloopError, match="logits at position 6 have no finite maximum"):
        llm.generate([random_tokens(5, 12)], PARAMS)
    assert_idle(llm)
