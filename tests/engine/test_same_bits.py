"""The promise of continuous batching: tokens, logprobs and finish reasons are, bit for bit, those of a request that runs
alone, whatever runs beside it, however its prompt is cut, wherever its blocks lie, and whatever happens on the way."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from engine.engines import assert_idle
from engine.guesses import guesses
from engine.jobs import ALONE, NUM_JOBS, Exercised, Job, answers, one_by_one, params_of
from hotloop import LLM, Resume, SamplingParams
from hotloop.config import KVDtype
from hotloop.errors import InvalidRequestError
from hotloop.request import CompletionOutput
from hotloop.scheduler.output import SchedulerOutput
from hotloop.scheduler.scheduler import Scheduler
from tiny_models import ARCHITECTURES, random_tokens, write_tiny_model


def tiny_jobs(context: int) -> list[Job]:
    """Prompts of 1 token to 3/4 of the context, half of them beginning like another; outputs of 1 to 30."""
    shared = random_tokens(99, context // 2)
    jobs = []
    for i in range(NUM_JOBS):
        own = random_tokens(i, 1 + (i * 13) % (context // 2))
        prompt = shared[: (i * 7) % (context // 2) * 2] + own if i % 2 else own
        jobs.append((prompt[: context * 3 // 4], params_of(i, 1 + (i * 5) % 30)))
    return jobs


def hungry_jobs() -> list[Job]:
    """Short prompts and long outputs: more are let in than the pool can hold to their end."""
    return [
        (random_tokens(i, 1 + i), replace(params_of(i, 60 + i), stop_token_ids=None, ignore_eos=True)) for i in range(20)
    ]


def pool_bytes(llm: LLM, num_contexts: int) -> int:
    """Of a pool that holds so many requests of the whole context; one where a window keeps most of them short."""
    layout = llm._runner.layout
    num_contexts = num_contexts if len(layout.groups) == 1 else 1
    return num_contexts * layout.blocks_for(llm.max_model_len) * layout.block_bytes


@pytest.fixture(scope="module", params=ARCHITECTURES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models"), request.param)


def tiny_model(folder: Path, architecture: str) -> Path:
    formats = {"*": "Q4_1", "token_embd": "Q8_0"}
    context = 256 if architecture == "gemma3" else 128  # its blocks of full attention hold 96 tokens
    return write_tiny_model(folder / "tiny.gguf", architecture, formats=formats, seed=3, context_length=context)


@pytest.fixture(scope="module")
def jobs(tiny: Path) -> list[Job]:
    return tiny_jobs(LLM(tiny, max_num_seqs=1).max_model_len)


@pytest.fixture(scope="module")
def expected(tiny: Path, jobs: list[Job]) -> list[CompletionOutput]:
    return one_by_one(LLM(tiny, **ALONE), jobs)


def test_the_jobs_differ(expected: list[CompletionOutput]) -> None:
    assert len({tuple(e.token_ids) for e in expected}) > NUM_JOBS * 0.7
    assert {e.finish_reason for e in expected} == {"stop", "length"}


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_batched_with_31_others_in_blocks_of_any_size(
    tiny: Path, jobs: list[Job], expected: list[CompletionOutput], block_size: int
) -> None:  # known faults B55, B113
    llm = LLM(tiny, block_size=block_size)
    assert answers(llm, jobs) == expected
    assert Exercised(llm._core).largest_batch >= 16
    assert Exercised(llm._core).mixed_steps > 0


@pytest.mark.parametrize("tokens", [1, 3, 17, 33, 64, 1000])
def test_chunks_of_any_size(tiny: Path, jobs: list[Job], expected: list[CompletionOutput], tokens: int) -> None:
    llm = LLM(tiny, max_num_batched_tokens=tokens, enable_prefix_caching=False)
    some = jobs if tokens > 8 else jobs[:8]
    assert answers(llm, some) == expected[: len(some)]
    exercised = Exercised(llm._core)
    assert exercised.prefill_tokens == sum(len(prompt) for prompt, _ in some)
    if 8 < tokens < 100:
        assert exercised.mixed_steps > 10
        assert llm._core.steps.latest()[:, 7:9].sum(axis=1).max() <= tokens


@pytest.mark.parametrize("limit", [1, 9])
def test_prompts_cut_small_beside_decodes(
    tiny: Path, jobs: list[Job], expected: list[CompletionOutput], limit: int
) -> None:
    llm = LLM(tiny, prefill_tokens_beside_decodes=limit)
    assert answers(llm, jobs) == expected
    steps = llm._core.steps.latest()
    assert Exercised(llm._core).mixed_steps > 20
    assert steps[steps[:, 8] > 0][:, 7].max() <= max(limit, 16)


@pytest.mark.parametrize("order", range(3))
def test_any_order_of_arrival(tiny: Path, jobs: list[Job], expected: list[CompletionOutput], order: int) -> None:
    """Also with arrivals spread over the steps, by threads that start when they like."""
    llm = LLM(tiny, max_num_batched_tokens=48)
    where = list(range(NUM_JOBS))
    random.Random(order).shuffle(where)
    if order < 2:
        assert answers(llm, [jobs[i] for i in where]) == [expected[i] for i in where]
        return
    got: dict[int, CompletionOutput] = {}

    def ask(indices: list[int]) -> None:
        for i in indices:
            got[i] = llm.generate([jobs[i][0]], jobs[i][1])[0].outputs[0]

    threads = [threading.Thread(target=ask, args=(where[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert [got[i] for i in range(NUM_JOBS)] == expected
    assert_idle(llm)


def test_two_threads_and_a_scarce_pool(tiny: Path) -> None:
    """Preemptions, with the prefix cache and without: what was lost is computed again, to the same bits."""
    hungry = hungry_jobs()
    alone = LLM(tiny, block_size=4, **ALONE)
    expected = one_by_one(alone, hungry)
    for caching in (True, False):
        pool = pool_bytes(alone, 2)
        llm = LLM(tiny, block_size=4, kv_cache_memory_bytes=pool, threads=2, enable_prefix_caching=caching)
        assert answers(llm, hungry) == expected
        assert Exercised(llm._core).preemptions > 0 or guesses(llm)


def test_a_cache_that_is_cold_or_warm(tiny: Path, jobs: list[Job], expected: list[CompletionOutput]) -> None:
    # known faults B46, B115
    llm = LLM(tiny)
    for _ in range(3):
        assert answers(llm, jobs) == expected
    longest = max(jobs, key=lambda job: len(job[0]))
    assert llm.generate([longest[0]], longest[1])[0].num_cached_tokens > 0
    assert one_by_one(llm, jobs) == expected


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_prefix_hits_at_the_edges_of_blocks(tiny: Path, offset: int) -> None:  # known faults B48, B53, B111
    """Cold, full hit, partial hit, after an eviction: the bits of an engine without a cache."""
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=8, logprobs=3)
    off = LLM(tiny, enable_prefix_caching=False)
    llm = LLM(tiny)
    hits = 0
    size = max(llm._runner.layout.block_sizes)
    for length in range(size + offset, llm.max_model_len - 10, size):
        prompt = random_tokens(length, length)
        other = prompt[: length // 2] + random_tokens(7, length - length // 2)
        for job in (prompt, prompt, other, [*prompt, 5], prompt[:-1], prompt):
            output = llm.generate([job], params)[0]
            assert output.outputs == off.generate([job], params)[0].outputs
            assert output.num_cached_tokens < len(job)  # the last token is always computed
            hits += output.num_cached_tokens > 0
        llm._core.kv_cache.reset_prefix_cache()
        assert llm.generate([prompt], params)[0].num_cached_tokens == 0
    assert hits >= 2


def test_a_crowd_over_a_few_beginnings_in_a_scarce_pool(tiny: Path) -> None:  # known fault B115
    """200 requests, 5 prefixes, room for about three of them: hits, evictions and waiting at once."""
    prefixes = [random_tokens(1000 + i, 60) for i in range(5)]
    crowd = [(prefixes[i % 5] + random_tokens(i, 1 + i % 20), replace(params_of(i, 6), seed=i % 3)) for i in range(200)]
    alone = LLM(tiny, **ALONE)
    expected = one_by_one(alone, crowd)
    llm = LLM(tiny, kv_cache_memory_bytes=pool_bytes(alone, 2))
    assert answers(llm, crowd) == expected
    steps = llm._core.steps.latest()
    assert steps[:, 7].sum() < sum(len(prompt) for prompt, _ in crowd) or len(llm._runner.layout.groups) > 1
    assert llm._core.kv_cache.usage().cached_blocks > 0


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_long_prompts_that_are_cached(tmp_path: Path, arch: str) -> None:  # known faults B53, B56
    """Hits that end inside the spans of attention: again and again, partly, and after an eviction."""
    path = write_tiny_model(tmp_path / "long.gguf", arch, seed=3, context_length=2048)
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=3)
    prompt = random_tokens(8, 1500)
    llm, off = LLM(path, max_num_seqs=2), LLM(path, max_num_seqs=1, enable_prefix_caching=False)
    expected = {n: off.generate([prompt[:n]], params)[0].outputs for n in (1500, 900)}
    hits = []
    for n in (1500, 1500, 900, 1500):
        output = llm.generate([prompt[:n]], params)[0]
        assert output.outputs == expected[n]
        hits.append(output.num_cached_tokens)
    assert hits[0] == 0
    assert min(hits[1:]) > 700
    llm.generate([random_tokens(i, 2000) for i in range(3)], params)
    output = llm.generate([prompt], params)[0]
    assert output.outputs == expected[1500]
    assert output.num_cached_tokens < hits[1]


def preempting(scheduler: Scheduler, step: Iterator[int], at: int, victim: int) -> Callable[..., SchedulerOutput]:
    """``scheduler.schedule`` that first preempts the ``victim``-th running request, in step ``at``."""
    schedule = scheduler.schedule

    def schedule_after_a_preemption(*args: Any) -> SchedulerOutput:
        if next(step) == at and len(scheduler._running) > victim:
            scheduler._preempt(scheduler._running[victim])
        return schedule(*args)

    return schedule_after_a_preemption


def test_preempted_at_every_possible_step(tiny: Path) -> None:
    jobs = [(random_tokens(i, 20 + i), params_of(i, 10)) for i in range(6)]
    expected = one_by_one(LLM(tiny, **ALONE), jobs)
    for caching in (False, True):
        llm = LLM(tiny, max_num_batched_tokens=16, enable_prefix_caching=caching)
        core = llm._core
        for victim in (0, 3):
            num_steps, at = 100, 0
            while at < num_steps:
                step = count()
                core.scheduler.schedule = preempting(core.scheduler, step, at, victim)  # type: ignore[method-assign]
                core.kv_cache.reset_prefix_cache()
                assert answers(llm, jobs) == expected
                del core.scheduler.schedule
                num_steps = next(step)
                at += 1
            assert at >= 12


def test_forked_choices_are_those_of_separate_requests(tiny: Path) -> None:  # known fault B09
    """Copy-on-write at every fill of the last block; choice 0 is the answer of n = 1."""
    llm = LLM(tiny)
    off = LLM(tiny, **ALONE)
    for length in (1, 8, 15, 16, 17, 31, 32, 40):
        prompt = random_tokens(length, length)
        params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=20, logprobs=2, ignore_eos=True)
        choices = llm.generate([prompt], params)[0].outputs
        assert [c.index for c in choices] == [0, 1, 2, 3]
        assert len({tuple(c.token_ids) for c in choices}) == 4
        assert choices[0] == off.generate([prompt], replace(params, n=1))[0].outputs[0]
        for choice in choices:
            (*_, last) = off.resume(Resume(prompt, (), replace(params, n=1), 3, choice=choice.index))
            assert last.output is not None
            assert last.output.outputs == [choice]
    assert_idle(llm)


def test_resumed_at_every_output_length(tiny: Path, jobs: list[Job], expected: list[CompletionOutput]) -> None:
    """In another engine, with other requests beside it: ids, text, finish reason, and the logprobs of the rest."""
    for i in (0, 1, 3, 4, 5, 8, 9, 10):
        prompt, params = jobs[i]
        whole = expected[i]
        llm = LLM(tiny, max_num_batched_tokens=32)
        for length in range(len(whole.token_ids)):
            beside = llm.stream(jobs[(i + 1) % NUM_JOBS][0], jobs[(i + 1) % NUM_JOBS][1])
            next(beside)
            assert params.seed is not None
            (*_, last) = llm.resume(Resume(prompt, whole.token_ids[:length], params, params.seed))
            beside.close()
            assert last.output is not None
            assert whole.logprobs is not None
            assert last.output.outputs == [replace(whole, logprobs=whole.logprobs[length:])]
        assert_idle(llm)


@pytest.mark.parametrize("job", [7, 11])
def test_resumed_with_mirostat(tiny: Path, jobs: list[Job], expected: list[CompletionOutput], job: int) -> None:
    """The one state of the sampler that the output ids do not tell."""
    prompt, params = jobs[job]
    llm = LLM(tiny)
    (request,) = llm._inputs.ask(prompt, params).requests
    llm._core.add([request])
    so_far = []
    while llm._core.has_work:
        so_far.append(Resume.of(request))
        llm._core.step()
    assert len({resume.mirostat_mu for resume in so_far}) > 3
    for resume in {len(resume.output_ids): resume for resume in so_far}.values():
        (*_, last) = llm.resume(resume)
        assert last.output is not None
        logprobs = expected[job].logprobs
        assert logprobs is not None
        assert last.output.outputs == [replace(expected[job], logprobs=logprobs[len(resume.output_ids) :])]
    with pytest.raises(InvalidRequestError, match="mirostat_mu"):
        llm.resume(replace(so_far[-1], mirostat_mu=None))


# Every dtype where the groups of the KV cache differ in kind; in other architectures the one with scales.
KV_DTYPES = [
    (architecture, dtype)
    for architecture in ARCHITECTURES
    for dtype in get_args(KVDtype)
    if dtype == "int8" or architecture in ("llama", "qwen2", "gemma3")
]


@pytest.mark.parametrize(("architecture", "kv_dtype"), KV_DTYPES)
def test_every_kv_dtype(architecture: str, kv_dtype: str, tmp_path: Path) -> None:  # known fault B127
    """Chunks, preemptions and hits at once."""
    tiny = tiny_model(tmp_path, architecture)
    jobs = tiny_jobs(256 if architecture == "gemma3" else 128)
    jobs = jobs[::2] + jobs[1:8:2] + hungry_jobs()[::2]
    alone = LLM(tiny, kv_dtype=kv_dtype, block_size=4, **ALONE)
    expected = one_by_one(alone, jobs)
    llm = LLM(
        tiny, kv_dtype=kv_dtype, block_size=4, max_num_batched_tokens=40, threads=2,
        kv_cache_memory_bytes=pool_bytes(alone, 2),
    )  # fmt: skip
    assert answers(llm, jobs) == expected
    assert answers(llm, jobs[::-1]) == expected[::-1]
    exercised = Exercised(llm._core)
    assert exercised.preemptions > 0 or guesses(llm)
    assert exercised.mixed_steps > 0
    outputs = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    assert [output.outputs[0] for output in outputs] == expected
    assert sum(output.num_cached_tokens for output in outputs) > 0


def test_aborted_neighbours_leave_no_trace(tiny: Path, jobs: list[Job], expected: list[CompletionOutput]) -> None:
    # known fault B52
    """Streams given up at random moments while others run; every block comes back."""
    llm = LLM(tiny, max_num_batched_tokens=48)
    rng = random.Random(1)
    streams = [llm.stream(*job) for job in jobs]
    keep = {i for i in range(NUM_JOBS) if i % 3 == 0}
    done: dict[int, CompletionOutput] = {}
    open_ = list(range(NUM_JOBS))
    while open_:
        i = rng.choice(open_)
        chunk = next(streams[i])
        if chunk.output is not None:
            done[i] = chunk.output.outputs[0]
            open_.remove(i)
        elif i not in keep and rng.random() < 0.2:
            streams[i].close()
            open_.remove(i)
    assert keep <= done.keys()
    assert all(done[i] == expected[i] for i in done)
    del streams
    assert_idle(llm)
