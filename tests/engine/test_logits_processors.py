"""A user's functions on rows of logits, through the engine."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import assert_idle
from engine.guesses import guess_in_all_engines
from engine.jobs import ALONE, SCHEMA, Exercised, answers, one_by_one
from hotloop import LLM, AsyncLLM, Resume, SamplingParams
from hotloop.engine.checks import check_request
from hotloop.errors import HotloopError, InvalidRequestError
from tiny_models import random_tokens

PROMPT = "x y"


def shifted(prompt_token_ids: Sequence[int], output_token_ids: Sequence[int], logits: Any) -> Any:
    """Depends on all that it gets, and writes in place."""
    rng = np.random.default_rng([*prompt_token_ids, *output_token_ids])
    logits += rng.normal(size=len(logits)).astype(np.float32) * 5
    return logits


def without(token_id: int) -> Any:
    def bar(output_token_ids: Sequence[int], logits: Any) -> Any:
        logits[token_id] = -np.inf
        return logits

    return bar


PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=20, logprobs=2, logits_processors=[shifted])


@pytest.fixture(scope="module")
def alone(model: Path) -> LLM:
    return LLM(model, **ALONE)


def jobs() -> list[tuple[list[int], SamplingParams]]:
    kinds: list[dict[str, Any]] = [
        {}, {"logits_processors": None}, {"temperature": 0, "logprobs_mode": "processed"}, {"structured_outputs": SCHEMA},
        {"mirostat": 2}, {"repetition_penalty": 1.5, "min_tokens": 9, "stop_token_ids": list(range(100))},
    ]  # fmt: skip
    params = [replace(PARAMS, seed=i, max_tokens=20 + i, **kinds[i % len(kinds)]) for i in range(18)]
    return [(random_tokens(i, 3 + 5 * i), one) for i, one in enumerate(params)]


def test_batches_chunks_hits_and_preemptions_change_nothing(model: Path, alone: LLM) -> None:
    expected = one_by_one(alone, jobs())
    llm = LLM(model, max_num_batched_tokens=32, block_size=4, kv_cache_memory_bytes=9 * 16 * 256)
    assert answers(llm, jobs()) == expected
    assert answers(llm, jobs()[::-1]) == expected[::-1]
    assert Exercised(llm._core).preemptions > 0


@pytest.fixture
def guessing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guess_in_all_engines(patch)
        yield


def test_drafts_change_nothing(model: Path, guessing: None) -> None:
    expected = one_by_one(LLM(model, **ALONE), jobs())
    llm = LLM(model)
    assert answers(llm, jobs()) == expected
    assert Exercised(llm._core).accepted_tokens > 50
    assert Exercised(llm._core).draft_tokens > Exercised(llm._core).accepted_tokens


def test_choices_streams_and_resumed_requests(model: Path, alone: LLM) -> None:
    llm = LLM(model)
    output = llm.generate(PROMPT, replace(PARAMS, n=3))[0]
    assert len({tuple(choice.token_ids) for choice in output.outputs}) == 3
    whole = alone.generate(PROMPT, PARAMS)[0].outputs[0]
    assert output.outputs[0] == whole
    assert "".join(chunk.text for chunk in llm.stream(PROMPT, PARAMS)) == whole.text
    for length in range(0, len(whole.token_ids), 3):
        *_, last = llm.resume(Resume(output.prompt_token_ids, whole.token_ids[:length], PARAMS, 3))
        assert last.output is not None
        assert last.output.outputs[0].token_ids == whole.token_ids
    assert_idle(llm)


def test_they_come_before_masks_and_bans(model: Path) -> None:
    """Whatever they prefer, what is not allowed is not drawn; and what they bar stays barred."""
    llm = LLM(model)
    token_id = 50

    def only(ids: Sequence[int], logits: Any) -> Any:
        return np.where(np.arange(len(logits)) == token_id, np.float32(100), logits)

    greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    one = replace(greedy, logits_processors=[only])
    assert llm.generate(PROMPT, one)[0].outputs[0].token_ids == [token_id] * 4
    for params in ({"logit_bias": {token_id: -100}}, {"allowed_token_ids": [51, 52]}, {"structured_outputs": SCHEMA}):
        assert token_id not in llm.generate(PROMPT, replace(one, **params))[0].outputs[0].token_ids
    both = replace(greedy, logits_processors=[only, without(token_id)], logit_bias={token_id: 100})
    assert token_id not in llm.generate(PROMPT, both)[0].outputs[0].token_ids


@pytest.mark.parametrize("at", [0, 4])
def test_one_that_fails_ends_its_request_only(model: Path, alone: LLM, at: int) -> None:
    def fails(output_token_ids: Sequence[int], logits: Any) -> Any:
        if len(output_token_ids) == at:
            raise KeyError("where is it")
        return logits

    llm = LLM(model)
    plain = SamplingParams(temperature=0.9, seed=1, max_tokens=12, ignore_eos=True, logprobs=1)
    expected = alone.generate(PROMPT, plain)[0].outputs[0]
    some = [("plain", PROMPT, plain), ("bad", PROMPT, replace(plain, logits_processors=[fails])), ("more", PROMPT, plain)]
    results = dict(llm.answer_each(some))
    assert isinstance(results["bad"], InvalidRequestError)
    assert str(results["bad"]).startswith(f"logits_processors[0] (fails) raised KeyError at position {3 + at}")
    for name in ("plain", "more"):
        answer = results[name]
        assert not isinstance(answer, HotloopError)
        assert answer.outputs[0] == expected
    chunks = []
    with pytest.raises(InvalidRequestError, match="fails"):
        chunks += list(llm.stream(PROMPT, replace(plain, logits_processors=[fails])))
    assert_idle(llm)


def test_async(model: Path, alone: LLM) -> None:
    async def answer() -> str:
        async with AsyncLLM(model) as llm:
            return (await llm.answer(PROMPT, PARAMS)).outputs[0].text

    assert asyncio.run(answer()) == alone.generate(PROMPT, PARAMS)[0].outputs[0].text


class UntoldError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class Untold:
    """A function that cannot even be asked what parameters it has."""

    @property
    def __signature__(self) -> Any:
        raise SystemExit(3)

    @property
    def __name__(self) -> str:
        raise SystemExit(4)

    def __call__(self, output_token_ids: Sequence[int], logits: Any) -> Any:
        raise SystemExit(5)


NO_EXCEPTIONS = [SystemExit, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt]


@pytest.mark.parametrize("error", [*NO_EXCEPTIONS, UntoldError, None])
def test_whatever_is_raised_ends_one_request_only(model: Path, alone: LLM, error: type[BaseException] | None) -> None:
    def fails(output_token_ids: Sequence[int], logits: Any) -> Any:
        if error is not None and len(output_token_ids) == 2:
            raise error()
        return logits

    async def both() -> list[Any]:
        async with AsyncLLM(model) as llm:
            function = Untold() if error is None else fails
            bad = llm.answer(PROMPT, replace(PARAMS, logits_processors=[function]))
            return [
                *await asyncio.wait_for(asyncio.gather(llm.answer(PROMPT, PARAMS), bad, return_exceptions=True), 30),
                await asyncio.wait_for(llm.answer(PROMPT, PARAMS), 30),
            ]

    beside, failed, after = asyncio.run(both())
    assert isinstance(failed, InvalidRequestError), failed
    assert (SystemExit if error is None else error).__name__ in str(failed)
    expected = alone.generate(PROMPT, PARAMS)[0].outputs[0]
    assert beside.outputs[0] == after.outputs[0] == expected


def test_what_a_handler_of_a_signal_raises_goes_through(alone: LLM) -> None:
    def ends(output_token_ids: Sequence[int], logits: Any) -> Any:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        alone.generate(PROMPT, replace(PARAMS, logits_processors=[ends]))
    assert_idle(alone)


def test_one_that_calls_its_own_engine_fails(model: Path) -> None:
    llm = LLM(model)

    def calls(output_token_ids: Sequence[int], logits: Any) -> Any:
        llm.generate(PROMPT, SamplingParams(max_tokens=1))
        return logits

    with pytest.raises(InvalidRequestError, match="within its own step"):
        llm.generate(PROMPT, replace(PARAMS, logits_processors=[calls]))
    assert_idle(llm)


def test_a_request_from_within_the_step_leaves_nothing_behind(model: Path) -> None:
    """It is refused, and its name is free."""

    async def both() -> str:
        async with AsyncLLM(model) as llm:

            def calls(output_token_ids: Sequence[int], logits: Any) -> Any:
                asyncio.run(llm.answer(PROMPT, SamplingParams(max_tokens=2), request_id="mine"))
                return logits

            with pytest.raises(InvalidRequestError, match="within its own step"):
                await llm.answer(PROMPT, replace(PARAMS, logits_processors=[calls]))
            assert llm.num_open == 0
            return (await llm.answer(PROMPT, replace(PARAMS, max_tokens=2), request_id="mine")).outputs[0].text

    assert asyncio.run(both())


def test_an_engine_in_another_process_refuses_them(alone: LLM) -> None:
    (request,) = alone._inputs.ask(PROMPT, PARAMS).requests
    with pytest.raises(InvalidRequestError, match="logits_processors"):
        check_request(request, alone.info)
