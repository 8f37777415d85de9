"""Clients of one engine: threads that share it, answers that fail among others, priorities, and the in-process transport."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine.engines import GREEDY, assert_idle
from engine.jobs import Exercised
from hotloop import LLM, GenerationError, SamplingParams
from hotloop.engine.generation import Generation
from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.request import Request, RequestId, TokenDelta
from tiny_models import random_tokens, write_tiny_model

LONG = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)


def test_streams_of_several_threads_run_together(model: Path) -> None:
    llm = LLM(model)
    expected = llm.generate([[i] * 5 for i in range(8)], LONG)
    together = LLM(model)
    barrier = threading.Barrier(8)
    texts = [""] * 8

    def ask(i: int) -> None:
        barrier.wait()
        for chunk in together.stream([i] * 5, LONG):
            texts[i] += chunk.text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert texts == [output.outputs[0].text for output in expected]
    assert Exercised(together._core).largest_batch > 1
    assert together._core.steps.num_steps < 800  # fewer than one after another would take
    assert_idle(together)


def test_all_pairs_of_lengths_on_a_window(tmp_path: Path) -> None:  # known fault B113
    llm = LLM(write_tiny_model(tmp_path / "m.gguf", "gemma3"))
    lengths = range(1, 41, 5)
    alone = {n: llm.generate([[n] * n], GREEDY)[0].outputs for n in lengths}
    for a in lengths:
        for b in lengths:
            pair = llm.generate([[a] * a, [b] * b], GREEDY)
            assert [o.outputs for o in pair] == [alone[a], alone[b]]


def test_one_that_fails_among_many(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:  # known fault B112
    """In the engine or in the client's own processing: the others are answered, and handed out with the error."""
    prompts = [[i] * 4 for i in range(6)]
    expected = llm.generate(prompts, GREEDY)
    push = Generation.push

    def fail(self: Generation, delta: TokenDelta) -> Any:
        if self.requests[0].prompt_token_ids == prompts[2] and self.output.outputs[0].token_ids:
            raise ZeroDivisionError("in a callback")
        if self.requests[0].prompt_token_ids == prompts[4]:
            delta = delta._replace(error="NaN")
        return push(self, delta)

    monkeypatch.setattr(Generation, "push", fail)
    with pytest.raises(GenerationError, match="2 of 6 prompts failed; prompt 2: ZeroDivisionError") as caught:
        llm.generate(prompts, GREEDY)
    assert {i: str(e) for i, e in caught.value.errors.items()} == {2: "ZeroDivisionError: in a callback", 4: "NaN"}
    assert [o and o.outputs for o in caught.value.outputs] == [
        None if i in (2, 4) else o.outputs for i, o in enumerate(expected)
    ]
    with pytest.raises(HotloopError, match=r"^NaN$"):
        llm.generate([prompts[4]], GREEDY)
    assert_idle(llm)


def test_any_number_of_prompts_lazily(llm: LLM) -> None:
    taken = []

    def jobs() -> Any:
        for i in range(1500):
            taken.append(i)
            yield i, [9999] if i % 100 == 7 else [i % 300], SamplingParams(temperature=0, max_tokens=1 + i % 2)

    answers = llm.answer_each(jobs())
    first = next(answers)
    assert len(taken) < 1100  # not all at once
    got = dict([first, *answers])
    assert sorted(got) == list(range(1500))
    errors = {key for key, answer in got.items() if isinstance(answer, HotloopError)}
    assert errors == set(range(7, 1500, 100))
    assert_idle(llm)


def test_priority_decides_who_starts(model: Path) -> None:
    llm = LLM(model, max_num_seqs=1, scheduling_policy="priority")
    outputs = llm.generate([[5], [6], [7]], GREEDY, priority=[2, 1, 0])
    ends = [o.timings["e2e_s"] for o in outputs if o.timings]
    assert ends == sorted(ends, reverse=True)
    with pytest.raises(InvalidRequestError, match="2 priorities"):
        llm.generate([[5], [6], [7]], GREEDY, priority=[2, 1])


def request(name: str, max_tokens: int = 3) -> Request:
    params = SamplingParams(temperature=0, top_p=1.0, top_k=0, min_p=0.0)
    return Request(RequestId(name), [5] * 10, params, 0, max_tokens, frozenset())


def test_the_transport_waits_for_work_and_for_nothing_else(llm: LLM) -> None:
    client = llm._client
    assert client.poll() == []
    start_s = time.monotonic()
    assert client.poll(timeout_s=0.05) == []
    assert time.monotonic() - start_s >= 0.05
    waiting = threading.Thread(target=client.poll, kwargs={"timeout_s": None})
    waiting.start()
    client.add([request("a")])
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    deltas = [delta for _ in range(5) for delta in client.poll()]
    assert deltas[-1].finish_reason == "length"
    client.add([request("b"), request("c")])
    client.add([request("b")])  # refused: the id is in use
    client.abort([RequestId("c"), RequestId("nobody")])
    assert [d.request_id for d in client.poll() if d.error] == ["b"]
    client.abort([RequestId("b")])
    assert_idle(llm)


def test_what_comes_while_a_step_runs_takes_effect_after_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """add and abort never wait for the step."""
    client, forward = llm._client, llm._runner.forward
    monkeypatch.setattr(llm._runner, "forward", lambda batch: (during(), forward(batch))[1])
    begun = []

    def during() -> None:
        def others() -> None:
            client.abort([RequestId("a")])
            client.add([request("b")])
            begun.append(True)

        if not begun:
            thread = threading.Thread(target=others)
            thread.start()
            thread.join(timeout=10)
            assert begun
            assert [live.request.request_id for live in llm._core._live.values()] == ["a"]

    client.add([request("a", 50)])
    assert [d.request_id for d in client.poll()] == ["a"]  # the step that ran
    assert [d.request_id for d in client.poll()] == ["b"]
    client.abort([RequestId("b")])
    assert_idle(llm)


def test_timelines_tell_hits_and_preemptions(llm: LLM) -> None:
    prompt = random_tokens(77, 60)
    llm.generate([prompt], GREEDY)
    again = llm.generate([prompt], GREEDY)[0]
    assert again.num_cached_tokens == 59 - 59 % 16
    assert again.timings is not None
    assert again.timings["preemptions"] == 0


def test_an_interrupt_takes_no_tokens_of_another_reader(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    expected = llm.generate("fox", params)[0].outputs[0].token_ids
    handler = signal.getsignal(signal.SIGINT)
    interrupted, other = llm.stream("hello", params), llm.stream("fox", params)
    next(interrupted)
    chunks = [next(other)]
    step = llm._core.step

    def step_with_ctrl_c() -> list[TokenDelta]:
        deltas = step()
        signal.raise_signal(signal.SIGINT)
        return deltas

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", step_with_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            list(interrupted)
    assert [i for c in (*chunks, *other) for i in c.token_ids] == expected
    assert signal.getsignal(signal.SIGINT) is handler
    assert_idle(llm)
