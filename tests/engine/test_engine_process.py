"""An engine that is killed, stalls or does not start: nobody sees a difference but in the time it takes."""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.faulty_worker import KILLS_AT_ONCE, KILLS_LATER, TALKS_NONSENSE
from engine.jobs import Job, params_of
from engine.processes import Answer, bits, engine_process, requests_of, run, undisturbed
from hotloop import AsyncLLM, SamplingParams
from hotloop.engine import starts
from hotloop.engine.loading import ConnectedEngine
from hotloop.engine.serving import start_engine_process
from hotloop.engine.supervisor import SupervisedClient
from hotloop.errors import CapacityError, EngineDeadError, HotloopError, InvalidRequestError, ModelFileError
from hotloop.request import RequestId, Timeline, TokenDelta
from hotloop.telemetry.steps import StepReport
from hotloop.telemetry.timings import PARTS
from open_files import no_file_left_open, num_open_files
from tiny_folders import write_tiny_folder
from tiny_models import random_tokens

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=1)


def mixed_jobs(num: int = 12, max_tokens: int = 40) -> list[Job]:
    """Every kind of sampling; every third with several choices."""
    return [
        ([1, *random_tokens(i, 5 + 3 * i)], replace(params_of(i, max_tokens), n=3 if i % 3 == 1 else 1))
        for i in range(num)
    ]


def parts(timeline: Timeline) -> float:
    return sum(float(getattr(timeline, part)) for part in PARTS)


def kill(client: SupervisedClient, number: int = signal.SIGKILL) -> None:
    assert client.pid is not None
    os.kill(client.pid, number)


@pytest.mark.parametrize("seed", range(2))
def test_kills_change_no_bit(model: Path, seed: int) -> None:
    jobs = mixed_jobs()
    expected = undisturbed(model, jobs)
    draw = random.Random(seed)
    kill_at = sorted(draw.sample(range(1, 400), 4))

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if kill_at and num_tokens >= kill_at[0] and client.state == "ready":
            kill(client)
            kill_at.pop(0)

    with engine_process(model) as (client, inputs):
        assert client.state == "ready"
        got = run(client, requests_of(inputs, jobs), meanwhile)
        assert bits(got) == expected
        assert not kill_at
        assert client.num_restarts == 4
        assert client.num_live == 0
    for choices in got:
        for answer in choices:
            assert parts(answer.timelines[-1]) == pytest.approx(
                answer.timelines[-1].last_token_s - answer.timelines[-1].arrival_s, abs=1e-6
            )
            assert [t.previous_token_s for t in answer.timelines[1:]] == [t.last_token_s for t in answer.timelines[:-1]]
            assert len({t.first_token_s for t in answer.timelines}) == 1
    assert any(answer.timelines[-1].recovery_s > 0.05 for choices in got for answer in choices)


def test_a_stalled_engine_is_replaced(model: Path) -> None:
    """A stopped process is no end that the kernel tells of."""
    jobs = mixed_jobs(4)
    expected = undisturbed(model, jobs)
    is_stopped = False

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        nonlocal is_stopped
        if num_tokens > 60 and not is_stopped:
            kill(client, signal.SIGSTOP)
            is_stopped = True

    with engine_process(model, watchdog_s=0.5) as (client, inputs):
        assert bits(run(client, requests_of(inputs, jobs), meanwhile)) == expected
        assert client.num_restarts == 1


@pytest.mark.parametrize("fault", [KILLS_AT_ONCE, KILLS_LATER, TALKS_NONSENSE])
def test_a_request_that_kills_the_engine_fails_alone(model: Path, fault: int) -> None:
    jobs = mixed_jobs(6)
    expected = undisturbed(model, jobs)
    rigged: list[Job] = [*jobs[:3], ([fault, 5, 6], replace(GREEDY, n=2)), *jobs[3:]]
    with engine_process(model) as (client, inputs):
        got = run(client, requests_of(inputs, rigged))
        culprits = got.pop(3)
        assert bits(got) == expected
        assert [c.error_kind for c in culprits] == ["engine_dead"] * 2
        assert all((len(c.token_ids) > 20) == (fault == KILLS_LATER) for c in culprits)
        assert bits(run(client, requests_of(inputs, jobs))) == expected  # and it serves on
        assert client.num_live == 0


def test_killed_while_it_has_nothing_to_do(model: Path) -> None:
    jobs = mixed_jobs(3)
    with engine_process(model, faulty=False) as (client, inputs):
        before = run(client, requests_of(inputs, jobs))
        kill(client)
        while client.num_restarts == 0 or client.state != "ready":
            assert client.poll(timeout_s=0.1) == []
        assert bits(run(client, requests_of(inputs, jobs))) == bits(before) == undisturbed(model, jobs)


def test_aborts_and_deadlines_while_there_is_no_engine(model: Path) -> None:
    with engine_process(model) as (client, inputs):
        kept, dropped, late = requests_of(inputs, mixed_jobs(3))
        client.add(kept)
        client.add(dropped)
        while not client.poll(timeout_s=5):
            pass
        kill(client)
        while client.state == "ready":
            client.poll()
        client.abort([request.request_id for request in dropped])
        late[0].deadline_s = time.perf_counter()
        client.add(late)
        assert client.num_live == len(kept) + 1
        answer = Answer()
        while answer.end is None:
            for delta in client.poll(timeout_s=5):
                assert delta.request_id in (kept[0].request_id, late[0].request_id)
                if delta.request_id == late[0].request_id:
                    answer.take(delta)
        assert answer.error_kind == "deadline"
        while client.num_live:
            client.poll(timeout_s=5)


def test_an_abort_frees_the_engine_within_two_steps(model: Path) -> None:
    observer = Recorder()
    with engine_process(model) as (client, inputs):
        client.observer = observer
        (request,) = requests_of(inputs, [([1, 2, 3], replace(GREEDY, max_tokens=100))])[0]
        client.add([request])
        while len(observer.tokens) < 5:
            client.poll(timeout_s=5)
        client.abort([request.request_id])
        assert client.num_live == 0
        while observer.reports[-1].num_running:
            assert client.poll(timeout_s=0.02) == []
        assert observer.reports[-1].record is None
        assert observer.reports[-1].num_free_blocks == observer.reports[-1].num_blocks
        assert sum(r.record is not None for r in observer.reports) <= 8


class Recorder:
    """An observer."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.tokens: list[int] = []
        self.reasons: list[str] = []

    def on_step(self, report: StepReport, deltas: Sequence[TokenDelta]) -> None:
        self.reports.append(report)
        self.tokens += [token_id for delta in deltas for token_id in delta.token_ids]

    def on_restart(self, reason: str) -> None:
        self.reasons.append(reason)
        raise ZeroDivisionError("an observer's fault is its own")


def test_the_observer_sees_every_token_once(model: Path) -> None:
    observer = Recorder()

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if num_tokens > 50 and not observer.reasons and client.state == "ready":
            kill(client)
            while not observer.reasons:
                client.poll(timeout_s=0)

    with engine_process(model) as (client, inputs):
        client.observer = observer
        ((answer,),) = run(client, requests_of(inputs, [([1, 2, 3], replace(GREEDY, max_tokens=100))]), meanwhile)
    assert observer.tokens == answer.token_ids
    assert observer.reasons == ["died"]


def test_an_engine_that_does_not_start_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is another one: answers must not be mixed of two models. Requests fail; once it is back, all is well."""
    monkeypatch.setattr(starts, "_RETRY_DELAYS_S", (0.01, 0.02))
    monkeypatch.setattr(starts, "_LATER_RETRY_DELAY_S", 0.1)
    path = tmp_path / "m.gguf"
    path.write_bytes(model.read_bytes())
    jobs = mixed_jobs(2)
    aside = tmp_path / "aside.gguf"

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if num_tokens > 20 and path.exists():
            path.rename(aside)
            kill(client)

    with engine_process(path) as (client, inputs):
        got = run(client, requests_of(inputs, jobs), meanwhile)
        assert {answer.error_kind for choices in got for answer in choices} == {"engine_dead"}
        assert client.state == "failed"
        requests = requests_of(inputs, jobs)
        with pytest.raises(EngineDeadError, match="does not start"):
            client.check(requests[0][0])
        assert {answer.error_kind for choices in run(client, requests) for answer in choices} == {"engine_dead"}
        aside.rename(path)
        while client.state != "ready":
            client.poll(timeout_s=0.1)
        assert bits(run(client, requests_of(inputs, jobs))) == undisturbed(model, jobs)


def test_a_folder_whose_weights_changed_in_place_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_RETRY_DELAYS_S", (0.01, 0.02))
    folder = write_tiny_folder(tmp_path / "f", dtype="BF16")
    weights = folder / "model.safetensors"

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if num_tokens > 20 and weights.stat().st_mtime != 1:
            with weights.open("r+b") as file:
                file.seek(-4000, os.SEEK_END)
                file.write(bytes(4000))
            os.utime(weights, (1, 1))
            kill(client)

    with engine_process(folder) as (client, inputs):
        got = run(client, requests_of(inputs, mixed_jobs(2)), meanwhile)
    assert {answer.error_kind for choices in got for answer in choices} == {"engine_dead"}


def test_requests_are_told_when_no_start_succeeds(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_RETRY_DELAYS_S", (0.01, 0.01))

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if num_tokens > 20 and client.num_restarts == 0:
            monkeypatch.setattr(client, "_module", "hotloop.no_such_module")
            kill(client)

    with engine_process(model) as (client, inputs):
        start_s = time.monotonic()
        got = run(client, requests_of(inputs, mixed_jobs(2)), meanwhile)
        assert {answer.error_kind for choices in got for answer in choices} == {"engine_dead"}
        assert client.state == "failed"
        assert time.monotonic() - start_s < 20  # not with the next try


def test_a_process_that_can_not_be_made_is_tried_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_RETRY_DELAYS_S", (0.01, 0.01))
    jobs = mixed_jobs(2)
    refusals = ["fork", "fork"]
    popen = subprocess.Popen

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if num_tokens > 20 and client.num_restarts == 0 and client.state == "ready":
            kill(client)

    def refuse(*args: Any, **options: Any) -> Any:
        if client.num_restarts and refusals:
            raise OSError(12, refusals.pop())
        return popen(*args, **options)

    with engine_process(model) as (client, inputs):
        monkeypatch.setattr("subprocess.Popen", refuse)
        with no_file_left_open():
            assert bits(run(client, requests_of(inputs, jobs), meanwhile)) == undisturbed(model, jobs)
        assert not refusals


def test_a_first_process_that_can_not_be_made_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 120)  # no socket has a path so long
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(HotloopError, match="no process could be started for the engine: File name too long"):
        start_engine_process(model, {}, watchdog_s=60)
    assert not list(folder.iterdir())


def test_a_start_that_hangs_is_given_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_LEAST_LIMIT_S", 0.1)
    jobs = mixed_jobs(2)
    stopped: set[int] = set()

    def meanwhile(num_tokens: int, answers: dict[RequestId, Answer]) -> None:
        if num_tokens > 20 and not stopped and client.state == "ready":
            kill(client)
            while client.state == "ready" or client.pid is None:
                client.poll()
            stopped.add(client.pid)
            kill(client, signal.SIGSTOP)

    with engine_process(model, watchdog_s=1) as (client, inputs):
        assert bits(run(client, requests_of(inputs, jobs), meanwhile)) == undisturbed(model, jobs)
        assert stopped
        assert client.pid not in stopped


def test_what_keeps_a_model_from_loading_is_told(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "m.gguf"
    broken.write_bytes(model.read_bytes()[:5000])
    with pytest.raises(ModelFileError, match="room for at most"):
        start_engine_process(broken, {}, watchdog_s=60)
    with pytest.raises(CapacityError, match="raise kv_cache_memory_bytes"):
        start_engine_process(model, {"kv_cache_memory_bytes": 10}, watchdog_s=60)
    with pytest.raises(InvalidRequestError, match="max_num_seqs"):
        start_engine_process(model, {"max_num_seq": 10}, watchdog_s=60)
    with pytest.raises(EngineDeadError, match="before the model was loaded"):
        start_engine_process(model, {}, watchdog_s=60, module="hotloop.no_such_module")


def test_the_engine_ends_with_its_server(model: Path) -> None:
    code = (
        "import sys; from hotloop.engine.serving import start_engine_process\n"
        "engine = start_engine_process(sys.argv[1], {}, watchdog_s=60)\n"
        "print(engine.client.pid, flush=True); sys.stdin.read()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdin is not None
    pid = int(server.stdout.readline())
    assert os.getpgid(pid) == pid != os.getpgid(server.pid)  # out of reach of the terminal
    pidfd = os.pidfd_open(pid)
    server.kill()
    server.wait()
    server.stdin.close()
    server.stdout.close()
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(10_000)
    os.close(pidfd)


def context_switches(pid: int) -> int:
    """Of all threads of a process so far: how often one of them had something to do."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        count += int(lines["voluntary_ctxt_switches"]) + int(lines["nonvoluntary_ctxt_switches"])
    return count


def test_nothing_moves_in_an_idle_engine(model: Path) -> None:
    with engine_process(model, faulty=False) as (client, inputs):
        run(client, requests_of(inputs, mixed_jobs(2)))
        assert client.pid is not None
        polls = threading.Thread(target=client.poll, kwargs={"timeout_s": None})
        polls.start()
        time.sleep(0.3)  # what the last step left to do is done
        before = context_switches(client.pid)
        own = time.process_time()
        time.sleep(0.5)
        assert context_switches(client.pid) == before
        assert time.process_time() - own < 0.02
        client.close()
        polls.join(timeout=10)
        assert not polls.is_alive()


def test_work_wakes_a_poll_and_so_does_the_end(model: Path) -> None:
    with engine_process(model, faulty=False) as (client, inputs):
        ((request,),) = requests_of(inputs, [([1, 2, 3], GREEDY)])
        got: list[TokenDelta] = []

        def read() -> None:
            while client.state != "closed":
                got.extend(client.poll(timeout_s=None))

        reader = threading.Thread(target=read)
        reader.start()
        client.add([request])
        while not (got and got[-1].finish_reason):
            time.sleep(0.001)
        assert [token for delta in got for token in delta.token_ids] == request.output_token_ids
        client.close()
        client.close()
        reader.join(timeout=10)
        assert not reader.is_alive()
        assert client.pid is None
        assert client.poll(timeout_s=None) == []


def test_restarts_leave_nothing_behind(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with no_file_left_open(), engine_process(model, faulty=False) as (client, inputs):
        assert not list(tmp_path.iterdir())  # connected sockets need no files
        files = num_open_files()
        threads = threading.active_count()
        for i in range(1, 4):
            kill(client)
            while client.num_restarts < i or client.state != "ready":
                client.poll(timeout_s=1)
            run(client, requests_of(inputs, mixed_jobs(1)))
        assert num_open_files() == files
        assert threading.active_count() == threads
    assert not list(tmp_path.iterdir())


def test_async_llm_over_an_engine_that_dies(model: Path) -> None:
    """The whole way: text, choices, stop strings, logprobs, and streams that only see a pause."""
    jobs = [
        (prompt, replace(params, stop=["e"] if i % 2 else None)) for i, (prompt, params) in enumerate(mixed_jobs(6))
    ]

    async def answers(llm: AsyncLLM, client: SupervisedClient | None) -> list[Any]:
        async def answer(prompt: list[int], params: SamplingParams) -> Any:
            ids: list[int] = []
            async for chunk in llm.generate(prompt, params):
                ids += chunk.token_ids if chunk.index == 0 else []
                if client is not None and client.num_restarts == 0 and len(ids) > 4 and client.state == "ready":
                    kill(client)
                if chunk.output is not None:
                    assert ids == chunk.output.outputs[0].token_ids
                    return chunk.output.outputs
            return None

        return await asyncio.gather(*(answer(*job) for job in jobs))

    async def main() -> None:
        async with AsyncLLM(model) as llm:
            expected = await answers(llm, None)
        with engine_process(model) as (client, inputs):
            engine = ConnectedEngine(path=model, inputs=inputs, client=client, ceiling_bytes_per_s=0.0)
            async with AsyncLLM.over(engine) as llm:
                assert await answers(llm, client) == expected
            assert client.num_restarts >= 1

    asyncio.run(main())
