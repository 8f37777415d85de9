"""AsyncLLM: many coroutines at once, cancellation, idleness, and what happens when the engine's thread fails."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.engines import GREEDY, assert_core_idle, exit_code
from hotloop import LLM, AsyncLLM, SamplingParams, StreamChunk, StructuredOutputsParams
from hotloop.engine.generation import Generation
from hotloop.engine.resume import Resume
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import TokenDelta

LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM(model)
    yield engine
    engine.close()


def slow_steps(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A LONG request takes 0.2 s at least: it does not end before the test does something to it."""
    step = engine._pump.client._core.step
    monkeypatch.setattr(engine._pump.client._core, "step", lambda: (time.sleep(0.002), step())[1])


async def collect(engine: AsyncLLM, prompt: Any, params: SamplingParams, delay_s: float = 0) -> list[StreamChunk]:
    chunks = []
    async for chunk in engine.generate(prompt, params):
        chunks.append(chunk)
        if delay_s:
            await asyncio.sleep(delay_s)
    return chunks


def test_coroutines_together_get_what_each_gets_alone(
    engine: AsyncLLM, llm: LLM
) -> None:  # known faults B35, B37, B136
    """Slow and fast readers, whole answers and streams; no delta is lost."""
    prompts = [f"{word} {i}" for i, word in enumerate(["hello", "fox", "a", "it is", "b"] * 8)]
    params = [SamplingParams(max_tokens=5 + i, seed=i, temperature=0.8) for i in range(len(prompts))]
    expected = [llm.generate(p, s)[0].outputs[0] for p, s in zip(prompts, params, strict=True)]

    async def main() -> list[list[StreamChunk]]:
        jobs = [collect(engine, p, s, 0.002 * (i % 3)) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
        return await asyncio.gather(*jobs)

    for chunks, want in zip(asyncio.run(main()), expected, strict=True):
        assert "".join(c.text for c in chunks) == want.text
        assert [i for c in chunks for i in c.token_ids] == want.token_ids
        assert chunks[-1].output is not None
        assert chunks[-1].output.outputs == [want]
    assert max(engine._pump.client._core.steps.latest()[:, 6]) >= 16  # requests of one step
    assert_async_idle(engine)


def assert_async_idle(engine: AsyncLLM) -> None:
    assert engine._pump.num_open == 0
    deadline_s = time.monotonic() + 10
    while engine._pump.client._core.has_work and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert_core_idle(engine._pump.client._core)


def test_cancellation_leaves_within_two_steps(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a task, and of a generator that is closed; one that nobody started to read never runs."""
    core, client = engine._pump.client._core, engine._pump.client
    asked: list[int] = []
    left: list[int] = []
    ask, leave = client.abort, core.abort
    slow_steps(engine, monkeypatch)
    monkeypatch.setattr(client, "abort", lambda ids: (asked.append(core.steps.num_steps), ask(ids)))
    monkeypatch.setattr(core, "abort", lambda name: (leave(name), left.append(core.steps.num_steps)))

    async def main() -> None:
        other = asyncio.create_task(collect(engine, "the other", LONG))
        stream = engine.generate("hello", LONG)
        await anext(stream)
        await stream.aclose()
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in engine.generate("hello", LONG):
                begun.set()
                await asyncio.sleep(0.001)

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        unread = engine.generate("hello", LONG)
        await unread.aclose()
        assert sum(len(c.token_ids) for c in await other) == 100

    asyncio.run(main())
    assert len(asked) == len(left) == 2
    assert all(after - before <= 1 for before, after in zip(asked, left, strict=True))
    assert_async_idle(engine)


def test_clients_that_leave_while_blocks_are_short(model: Path, llm: LLM) -> None:  # known fault B52
    """Many streams in a small pool, some closed at random moments: the others get their answers, the pool its blocks."""
    params = [SamplingParams(seed=i, max_tokens=40, n=1 + (i % 5 == 0), ignore_eos=True) for i in range(40)]
    prompts = [[i % 3] * (1 + i % 25) for i in range(40)]
    moments = random.Random(3).choices([None, 0, 1, 5, 20], k=40)

    async def ask(engine: AsyncLLM, i: int) -> Any:
        stream = engine.generate(prompts[i], params[i])
        chunks: list[StreamChunk] = []
        async for chunk in stream:
            chunks.append(chunk)
            if (moment := moments[i]) is not None and len(chunks) > moment:
                await stream.aclose()
                return None
        return chunks[-1].output

    async def main() -> list[Any]:
        options = {"block_size": 4, "kv_cache_memory_bytes": 40 * 4 * 256, "max_num_batched_tokens": 24}
        async with AsyncLLM(model, **options) as engine:
            outputs = await asyncio.gather(*(ask(engine, i) for i in range(40)))
            assert engine._pump.client._core.kv_cache.num_blocks == 40
            assert engine._pump.client._core.steps.latest()[:, 10].sum() > 0  # preemptions
            assert_async_idle(engine)
        return outputs

    outputs = asyncio.run(main())
    gone = [output is None for output in outputs]  # a late one may have ended: a slow reader gets more at a time
    assert sum(gone) >= 10
    assert all(moment is not None for left, moment in zip(gone, moments, strict=True) if left)
    expected = llm.generate(prompts, params)
    assert all(a is None or a.outputs == b.outputs for a, b in zip(outputs, expected, strict=True))


def test_salts_keep_prompts_apart(engine: AsyncLLM) -> None:  # known fault B45
    prompt = list(range(100, 160))

    async def num_cached(salt: str) -> int:
        output = await engine.answer(prompt, GREEDY, cache_salt=salt)
        return output.num_cached_tokens

    async def main() -> list[int]:
        return [await num_cached(salt) for salt in ("", "a", "b", "", "a", "b")]

    assert asyncio.run(main()) == [0, 0, 0, 48, 48, 48]


def test_a_break_out_of_the_loop_ends_the_request(engine: AsyncLLM) -> None:
    async def main() -> None:
        async for _ in engine.generate("hello", LONG):
            break

    asyncio.run(main())
    assert_async_idle(engine)


def test_errors_come_before_anything_runs(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(engine, monkeypatch)

    async def main() -> None:
        for bad in ([9999], [5] * 500, ""):
            with pytest.raises(InvalidRequestError):
                await engine.answer(bad, GREEDY)
        first = engine.generate("hello", LONG, request_id="mine")
        await anext(first)
        with pytest.raises(InvalidRequestError, match="id 'mine'"):
            await engine.answer("x", GREEDY, request_id="mine")
        await first.aclose()
        with pytest.raises(HotloopError, match="deadline"):
            await engine.answer("hello", LONG, timeout_s=0)
        assert (await engine.answer("hello", GREEDY)).finished

    asyncio.run(main())
    assert_async_idle(engine)


def test_a_name_is_free_as_soon_as_its_request_is_given_up(
    engine: AsyncLLM, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the step of the old one still runs: its delta is not the new one's."""
    step = engine._pump.client._core.step
    drawn, go_on = threading.Event(), threading.Event()

    def slow_step() -> list[TokenDelta]:
        deltas = step()
        drawn.set()
        go_on.wait(10)
        return deltas

    async def main() -> list[int]:
        first = engine.generate("hello", LONG, request_id="mine")
        await anext(first)
        monkeypatch.setattr(engine._pump.client._core, "step", slow_step)
        await asyncio.to_thread(drawn.wait, 10)
        await first.aclose()
        second = asyncio.create_task(engine.answer("fox", GREEDY, request_id="mine"))
        await asyncio.sleep(0)
        go_on.set()
        answer = await second
        assert answer.request_id == "mine"
        return answer.outputs[0].token_ids

    assert asyncio.run(main()) == llm.generate("fox", GREEDY)[0].outputs[0].token_ids
    assert not engine._pump._named
    assert_async_idle(engine)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_salt": None}, {"cache_salt": b"a"}, {"cache_salt": "\ud800"}, {"priority": "high"}, {"priority": None},
        {"timeout_s": "1"}, {"timeout_s": float("nan")}, {"request_id": 5}, {"request_id": ["a"]},
    ],
)  # fmt: skip
def test_options_that_would_break_the_step_of_all_are_refused(engine: AsyncLLM, options: dict[str, Any]) -> None:
    async def main() -> None:
        other = asyncio.create_task(engine.answer("hello", GREEDY))
        for prompt in ("fox", Resume([5, 6], [7], GREEDY, 3)):
            with pytest.raises(InvalidRequestError, match=next(iter(options))):
                await engine.answer(prompt, **options)
        assert (await other).finished

    asyncio.run(main())
    assert_async_idle(engine)


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        (Resume([5], [6], GREEDY, 1.5), "seed"),  # type: ignore[arg-type]
        (Resume([5], [6], GREEDY, 2**64), "seed"),
        (Resume([5], [6], GREEDY, 1, choice=-1), "choice"),
        (Resume([5], [True], GREEDY, 1), "output_ids"),
        (Resume("ab", [6], GREEDY, 1), "prompt_ids"),  # type: ignore[arg-type]
        (Resume(None, [6], GREEDY, 1), "prompt_ids"),  # type: ignore[arg-type]
    ],
)
def test_what_no_request_can_have_been_is_not_resumed(engine: AsyncLLM, resume: Resume, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        asyncio.run(engine.answer(resume))
    assert_async_idle(engine)


def test_a_resumed_request_has_options_too(engine: AsyncLLM) -> None:
    resume = Resume([5, 6], [7], LONG, 3)
    with pytest.raises(HotloopError, match="deadline"):
        asyncio.run(engine.answer(resume, timeout_s=0))
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        asyncio.run(engine.answer(resume, GREEDY))
    assert asyncio.run(engine.answer(resume, request_id="mine")).request_id == "mine"
    assert_async_idle(engine)


def test_choices_and_chat_and_resume(engine: AsyncLLM, llm: LLM) -> None:
    several = SamplingParams(max_tokens=12, seed=3, n=3, ignore_eos=True)
    expected = llm.generate("hello", several)[0].outputs
    messages = [{"role": "user", "content": "hi"}]

    async def main() -> None:
        assert (await engine.answer("hello", several)).outputs == expected
        text = "".join([c.text async for c in engine.chat(messages, GREEDY)])
        assert text == llm.chat(messages, GREEDY)[0].outputs[0].text
        prompt_ids = llm.tokenizer.encode("hello")
        resume = Resume(prompt_ids, expected[0].token_ids[:5], several, 3)
        chunks = [c async for c in engine.generate(resume)]
        assert chunks[-1].output is not None
        assert chunks[-1].output.outputs == expected[:1]

    asyncio.run(main())
    assert_async_idle(engine)


def test_idle_costs_no_cpu(engine: AsyncLLM) -> None:
    asyncio.run(collect(engine, "hello", GREEDY))
    time.sleep(0.1)  # workers spin for a moment, then sleep
    before_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before_s < 0.1


def test_a_dead_thread_ends_every_stream_with_an_error(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # known faults B112, B134
    engine = AsyncLLM(model)
    poll = engine._pump.client.poll
    polls = iter(range(4))

    def die(timeout_s: float | None = 0) -> Any:
        if next(polls, None) is None:
            raise RuntimeError("a bug")
        return poll(timeout_s)

    monkeypatch.setattr(engine._pump.client, "poll", die)

    async def main() -> None:
        results = await asyncio.gather(*(collect(engine, "hello", LONG) for _ in range(3)), return_exceptions=True)
        assert [str(r) for r in results] == ["the engine failed: RuntimeError: a bug"] * 3
        with pytest.raises(HotloopError, match="a bug"):
            await collect(engine, "hello", LONG)

    asyncio.run(main())
    assert engine._pump.failure is not None
    engine.close()
    engine.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_told_that_it_has_no_engine(model: Path) -> None:
    """And neither its requests nor its end wait for the thread that it does not have, or for a lock of that thread's."""
    engine = AsyncLLM(model)
    with engine._pump._lock, engine._pump.client._core_lock:  # type: ignore[attr-defined]  # as while a step runs
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(HotloopError, match="forked"):
                    asyncio.run(engine.answer("hello", GREEDY))
                engine.close()
                os._exit(0)
            finally:
                os._exit(2)
    assert exit_code(child) == 0
    assert asyncio.run(engine.answer("hello", GREEDY)).finished
    engine.close()


def test_close_ends_what_runs(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncLLM(model) as engine:
            slow_steps(engine, monkeypatch)
            stream = engine.generate("hello", LONG)
            await anext(stream)
            engine.close()
            with pytest.raises(HotloopError, match="closed"):
                async for _ in stream:
                    pass

    asyncio.run(main())


@pytest.mark.parametrize(
    "prompt",
    [
        ("hi", SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=["q"])),
        ("hi", SamplingParams(structured_outputs=StructuredOutputsParams(regex="q"))),
        (Resume([5], [6], replace(GREEDY, structured_outputs=StructuredOutputsParams(regex=".q")), 1), None),
    ],
)
def test_what_takes_long_is_done_off_the_event_loop(
    engine: AsyncLLM, prompt: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    inputs = engine.inputs
    for owner, name in ((inputs._words, "breakers"), (inputs._grammars, "compile")):
        monkeypatch.setattr(owner, name, _noting_threads(getattr(owner, name), threads))
    assert asyncio.run(collect(engine, *prompt))
    assert threads
    assert threading.main_thread() not in threads


def test_the_logprobs_of_a_long_prompt_are_put_into_words_off_the_event_loop(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    entry = Generation._logprob_entry

    def noting(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return entry(*args)

    monkeypatch.setattr(Generation, "_logprob_entry", noting)
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    chunks = asyncio.run(collect(engine, [5] * 120, params))
    assert len(threads) == 119
    assert threading.main_thread() not in threads
    assert chunks[-1].output is not None
    assert len(chunks[-1].output.prompt_logprobs or ()) == 120


def _noting_threads(work: Callable[[Any], Any], threads: list[threading.Thread]) -> Callable[[Any], Any]:
    def noting(value: Any) -> Any:
        threads.append(threading.current_thread())
        return work(value)

    return noting


def test_sampling_params_are_no_mapping(engine: AsyncLLM) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        asyncio.run(collect(engine, "hi", {"temperature": 0}))  # type: ignore[arg-type]
