"""LLM: requests in, answers out, on a tiny model; bad requests disturb nobody."""

import gc
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from engine.engines import GREEDY, assert_idle
from hotloop import LLM, SamplingParams
from hotloop.errors import CapacityError, HotloopError, InvalidRequestError, ModelNotFoundError
from hotloop.ops.batch import ForwardBatch
from hotloop.telemetry.timings import PARTS
from tiny_models import random_tokens, write_tiny_model

PROMPTS = ["hello", "the quick brown fox", "a"]


def test_outputs_come_in_the_order_of_prompts_and_equal_solo_runs(llm: LLM) -> None:  # known faults B55, B116
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [o.prompt for o in outputs] == PROMPTS
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        (solo,) = llm.generate(prompt, GREEDY)
        assert solo.outputs[0].token_ids == output.outputs[0].token_ids
        assert len(output.outputs[0].token_ids) == 12
        assert output.outputs[0].finish_reason == "length"
        assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
    assert_idle(llm)


def test_prompt_forms(llm: LLM) -> None:
    ids = llm.tokenizer.encode("hello")
    forms = ["hello", {"prompt": "hello"}, ids, {"prompt_token_ids": ids}]
    texts = {llm.generate(form, GREEDY)[0].outputs[0].text for form in forms}
    assert len(texts) == 1
    assert len(llm.generate([ids, ids], GREEDY)) == 2


def test_one_sampling_params_per_prompt(llm: LLM) -> None:
    outputs = llm.generate(["x", "x"], [GREEDY, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)])
    assert [len(o.outputs[0].token_ids) for o in outputs] == [12, 3]
    with pytest.raises(InvalidRequestError, match="2 prompts and 1 sampling_params"):
        llm.generate(["x", "y"], [GREEDY])


def test_seeds_replay_and_fresh_seeds_differ(llm: LLM) -> None:  # known fault B08
    seeded = SamplingParams(temperature=1.5, seed=7, max_tokens=16, ignore_eos=True)
    assert len({tuple(llm.generate("x", seeded)[0].outputs[0].token_ids) for _ in range(5)}) == 1
    fresh = [llm.generate("x", SamplingParams(temperature=1.5, max_tokens=16, ignore_eos=True))[0] for _ in range(8)]
    assert len({tuple(o.outputs[0].token_ids) for o in fresh}) > 1
    replay = SamplingParams(temperature=1.5, seed=fresh[0].seed, max_tokens=16, ignore_eos=True)
    assert llm.generate("x", replay)[0].outputs[0].token_ids == fresh[0].outputs[0].token_ids


def test_answers_do_not_depend_on_engine_options(model: Path, llm: LLM) -> None:
    params = [SamplingParams(temperature=1.2, top_k=50, top_p=0.9, seed=s, max_tokens=30, logprobs=3) for s in range(4)]
    expected = llm.generate(["hello there"] * 4, params)
    for options in ({"threads": 1}, {"isa": "scalar"}, {"max_num_batched_tokens": 3}, {"block_size": 4}, {"threads": 3}):
        for a, b in zip(LLM(model, **options).generate(["hello there"] * 4, params), expected, strict=True):
            assert a.outputs[0].token_ids == b.outputs[0].token_ids
            assert a.outputs[0].logprobs == b.outputs[0].logprobs


def test_streams_add_up_to_the_answer(llm: LLM) -> None:  # known faults B32, B37
    chunks = list(llm.stream("hello", GREEDY))
    assert all(c.finish_reason is None and c.output is None for c in chunks[:-1])
    last = chunks[-1]
    assert (last.text, last.token_ids, last.finish_reason) == ("", [], "length")
    assert last.output is not None
    choice = last.output.outputs[0]
    assert "".join(c.text for c in chunks) == choice.text
    assert [i for c in chunks for i in c.token_ids] == choice.token_ids
    assert choice == llm.generate("hello", GREEDY)[0].outputs[0]


def test_interleaved_streams_keep_their_own_tokens(llm: LLM) -> None:
    expected = [o.outputs[0].text for o in llm.generate(["hello", "fox"], GREEDY)]
    streams = [llm.stream("hello", GREEDY), llm.stream("fox", GREEDY)]
    texts = ["", ""]
    alive = [0, 1]
    while alive:
        for i in list(alive):
            chunk = next(streams[i], None)
            if chunk is None:
                alive.remove(i)
            else:
                texts[i] += chunk.text
    assert texts == expected
    assert_idle(llm)


def test_a_closed_stream_frees_its_blocks(llm: LLM) -> None:  # known fault B52
    stream = llm.stream("hello", GREEDY)
    next(stream)
    assert llm._core.kv_cache.num_free_blocks < llm._core.kv_cache.num_blocks
    stream.close()
    assert_idle(llm)


def test_stop_strings_and_ids_end_the_answer(llm: LLM) -> None:
    full = llm.generate("hello", GREEDY)[0].outputs[0]
    token = full.token_ids[4]
    first = full.token_ids.index(token)
    by_id = llm.generate("hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[token]))[0]
    assert by_id.outputs[0].finish_reason == "stop"
    assert by_id.outputs[0].stop_reason == token
    has_text = bool(llm.tokenizer.decode([token]))  # a stop token with a text is cut off with it
    assert by_id.outputs[0].token_ids == full.token_ids[: first + (not has_text)]
    stop = full.text[3:5]
    by_text = llm.generate("hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop))[0].outputs[0]
    assert by_text.text == full.text[: full.text.index(stop)]
    assert (by_text.finish_reason, by_text.stop_reason) == ("stop", stop)
    assert_idle(llm)


def test_eos_ends_unless_ignored_and_min_tokens_bars_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known faults B26, B102
    eos = min(llm.tokenizer.eos_token_ids)
    assert len(llm.tokenizer.eos_token_ids) == 2
    forward = llm._runner.forward

    def prefer_eos(batch: object) -> np.ndarray:
        logits = forward(batch).copy()  # type: ignore[arg-type]
        logits[:, sorted(llm.tokenizer.eos_token_ids)] = 1e4
        return logits

    monkeypatch.setattr(llm._runner, "forward", prefer_eos)
    ended = llm.generate("x", SamplingParams(temperature=0, max_tokens=5))[0].outputs[0]
    assert (ended.text, ended.finish_reason, ended.token_ids) == ("", "stop", [eos])
    later = llm.generate("x", SamplingParams(temperature=0, max_tokens=5, min_tokens=3))[0].outputs[0]
    assert (len(later.token_ids), later.token_ids[-1], later.finish_reason) == (4, eos, "stop")
    assert not llm.tokenizer.eos_token_ids & set(later.token_ids[:3])
    ignored = llm.generate("x", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))[0].outputs[0]
    assert (ignored.token_ids, ignored.finish_reason) == ([eos] * 5, "length")
    last = llm.generate("x", SamplingParams(temperature=0, max_tokens=1))[0].outputs[0]
    assert last.finish_reason == "stop"  # EOS in the last slot


def test_context_limits(llm: LLM) -> None:  # known faults B42, B43, B126
    context = llm.max_model_len
    assert context == 128
    unlimited = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    for prompt_tokens, expected in ((100, 28), (127, 1)):
        output = llm.generate([[5] * prompt_tokens], unlimited)[0]
        assert len(output.outputs[0].token_ids) == expected
        assert output.outputs[0].finish_reason == "length"
    clamped = llm.generate([[5] * 120], SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))[0]
    assert len(clamped.outputs[0].token_ids) == 8
    for prompt_tokens in (128, 129, 5000):
        with pytest.raises(InvalidRequestError, match=rf"{prompt_tokens} tokens.*128"):
            llm.generate([[5] * prompt_tokens], GREEDY)
    with pytest.raises(InvalidRequestError, match=r"characters.*128"):
        llm.generate("x" * 1_000_000, GREEDY)
    assert_idle(llm)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([[300]], "300"),
        ([[-1]], "-1"),
        ([[2**40]], "outside the vocabulary"),
        ([["a"]], "integers"),
        ([[True]], "integers"),
        ([[]], "empty"),
        ([{"prompts": "x"}], "prompts"),
        ([{"prompt": 5}], "5, which is no str"),
        ([{"prompt_token_ids": "abc"}], "'abc', which is no list"),
        ([{"prompt_token_ids": None}], "None"),
        (5, "not 5"),
        (b"text", "not b'text'"),
        (["x", None], "not None"),
        ([5, "x"], "not 5"),
        (np.array([1, 2]), "list of token ids"),
        ("\ud800", "surrogate"),
    ],
)
def test_bad_prompts_are_named_and_disturb_nobody(llm: LLM, prompt: object, message: str) -> None:
    before = llm.generate("hello", GREEDY)[0].outputs[0].text
    stream = llm.stream("hello", GREEDY)
    text = next(stream).text
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate(prompt, GREEDY)  # type: ignore[arg-type]
    assert text + "".join(c.text for c in stream) == before
    assert_idle(llm)


def test_empty_prompts(llm: LLM) -> None:  # known faults B39, B131
    assert llm.generate([], GREEDY) == []
    expected = llm.generate("hello", GREEDY)[0].outputs
    for empty in ("", [""], [[]], {"prompt": ""}, {"prompt_token_ids": []}, ["fine", ""]):
        with pytest.raises(InvalidRequestError, match="the prompt is empty"):
            llm.generate(empty, GREEDY)  # type: ignore[arg-type]
    for empty in ([], [[]]):
        with pytest.raises(InvalidRequestError, match="at least one"):
            llm.chat(empty, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="'prompt' or 'prompt_token_ids'"):
        llm.generate({}, GREEDY)
    assert llm.generate(" \n", GREEDY)[0].finished  # white space is text
    assert llm.generate("hello", GREEDY)[0].outputs == expected
    assert_idle(llm)


def test_an_empty_prompt_is_bos_where_the_model_adds_one(tmp_path: Path) -> None:  # known fault B39
    llm = LLM(write_tiny_model(tmp_path / "m.gguf", "gemma3"))
    assert llm.tokenizer.add_bos
    output = llm.generate("", GREEDY)[0]
    assert output.prompt_token_ids == [llm.tokenizer.bos_token_id]
    assert len(output.outputs[0].token_ids) == 12


def test_all_prompts_are_checked_before_anything_runs(llm: LLM) -> None:
    steps: list[int] = []
    step = llm._core.step
    llm._core.step = lambda: (steps.append(1), step())[1]  # type: ignore[method-assign]
    try:
        with pytest.raises(InvalidRequestError, match="9999"):
            llm.generate(["fine", [9999]], GREEDY)
    finally:
        llm._core.step = step  # type: ignore[method-assign]
    assert not steps


def test_broken_logits_fail_that_request_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known faults B105, B112
    expected = llm.generate("hello", GREEDY)[0].outputs[0].text
    forward = llm._runner.forward

    def break_long_prompts(batch: ForwardBatch) -> np.ndarray:
        logits = forward(batch).copy()
        rows = np.searchsorted(batch.query_start, batch.logits_rows, side="right") - 1
        logits[batch.seq_lens[rows] > 60, 7] = np.nan
        return logits

    monkeypatch.setattr(llm._runner, "forward", break_long_prompts)
    stream = llm.stream("hello", GREEDY)
    text = next(stream).text
    with pytest.raises(HotloopError, match="position 70"):
        llm.generate([[5] * 70], GREEDY)
    assert text + "".join(c.text for c in stream) == expected
    assert_idle(llm)


def test_a_request_that_can_never_fit_is_refused(
    model: Path, llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:  # known fault B50
    assert "KV pool" not in caplog.text
    small = LLM(model, kv_cache_memory_bytes=4 * 16 * 2 * 2 * 2 * 16 * 2)
    assert small._core.kv_cache.num_blocks == 4
    assert "the KV pool holds 65 tokens of a request and max_model_len is 128" in caplog.text
    assert len(small.generate([[5] * 50], GREEDY)[0].outputs[0].token_ids) == 12
    with pytest.raises(CapacityError, match="60 prompt tokens and max_tokens 12, and the KV pool holds 65"):
        small.generate([[5] * 60], GREEDY)
    whole = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)  # as much as there is room for
    assert len(small.generate([[5] * 60], whole)[0].outputs[0].token_ids) == 5
    assert small.generate("hello", GREEDY)[0].finished


def test_logprobs_have_vllms_shape(llm: LLM) -> None:  # known fault B15
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=3)
    choice = llm.generate("hello", params)[0].outputs[0]
    assert choice.logprobs is not None
    assert len(choice.logprobs) == len(choice.token_ids) == 4
    for token, entry in zip(choice.token_ids, choice.logprobs, strict=True):
        assert next(iter(entry)) == token
        assert entry[token].rank == 1
        values = [e.logprob for e in entry.values()]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3
        assert sum(np.exp(values)) <= 1 + 1e-5
    assert llm.generate("hello", GREEDY)[0].outputs[0].logprobs is None


def test_timings_follow_the_schema_and_the_definitions(llm: LLM) -> None:
    import tomllib
    from importlib.resources import files

    schema = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["timings"]
    output = llm.generate("hello", GREEDY)[0]
    timings = output.timings
    assert timings is not None
    assert timings.keys() == schema.keys()
    json.dumps(timings, allow_nan=False)
    assert timings["decode_tokens_per_s"] == pytest.approx(11 / timings["decode_s"])
    read = timings["weight_bytes_per_step"] + timings["kv_bytes_per_step"]
    ceiling = timings["read_bandwidth_ceiling_bytes_per_s"]
    assert timings["mbu"] == pytest.approx(read * timings["decode_tokens_per_s"] / ceiling, rel=1e-3)
    # 2 layers x (K and V) x 2 heads x 16 x 2 bytes per token; 11 decode steps after a prompt of n tokens read n+1 .. n+11
    n = len(output.prompt_token_ids)
    assert timings["kv_bytes_per_step"] == pytest.approx(256 * (n + 6), abs=1)


def test_timings_add_up(model: Path) -> None:
    """Under chunks, mixed steps and preemptions; E2E = TTFT + TPOT (n - 1)."""
    small = LLM(model, max_num_batched_tokens=16, kv_cache_memory_bytes=8 * 16 * 256, enable_prefix_caching=False)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    outputs = small.generate([random_tokens(i, 5 + 5 * i) for i in range(10)], params)
    for output in outputs:
        timings = output.timings
        assert timings is not None
        assert sum(timings[part] for part in PARTS) == pytest.approx(timings["e2e_s"], abs=1e-6)
        n = timings["drawn_tokens"]
        assert n == len(output.outputs[0].token_ids)
        assert timings["ttft_s"] + timings["tpot_s"] * (n - 1) == pytest.approx(timings["e2e_s"], abs=1e-6)
    assert small._core.steps.latest().min() >= 0  # no count of a step ever turns negative (known fault B81)
    totals = {part: sum(o.timings[part] for o in outputs if o.timings) for part in PARTS if part != "recovery_s"}
    assert min(totals.values()) > 0, totals
    assert sum(o.timings["preemptions"] for o in outputs if o.timings) > 0


def test_timings_of_one_token_and_of_a_request_that_waited(model: Path) -> None:  # known fault B107
    llm = LLM(model, max_num_seqs=1)
    long, one = llm.generate([[5] * 20] * 2, [GREEDY, SamplingParams(temperature=0, max_tokens=1)])
    assert long.timings is not None
    assert one.timings is not None
    # Both arrived before anything ran: the second waited at least while the first decoded.
    assert one.timings["queued_s"] > long.timings["decode_s"] > 0
    assert long.timings["ttft_s"] > 0
    assert [one.timings[k] for k in ("decode_s", "decode_tokens_per_s", "kv_bytes_per_step", "mbu")] == [0] * 4


def test_configuration_errors_name_the_field(model: Path) -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'block_size'"):
        LLM(model, blocksize=16)
    for bad in ({"block_size": 0}, {"threads": -1}, {"kv_dtype": "int3"}, {"max_model_len": 0}, {"isa": "sse9"}):
        with pytest.raises(InvalidRequestError, match=next(iter(bad.values()) if "isa" in bad else iter(bad))):
            LLM(model, **bad)
    with pytest.raises(ModelNotFoundError):
        LLM("no-such-model-anywhere")


def test_an_idle_engine_uses_no_cpu(llm: LLM) -> None:
    llm.generate("hello", GREEDY)
    time.sleep(0.05)  # workers spin for a moment, then sleep
    before_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before_s < 0.1


def resident_bytes() -> int:
    """What this process holds now; getrusage tells the peak, which something earlier may have set."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth_over_many_requests(model: Path) -> int:
    """Bytes that this process grows by in 1000 rounds."""
    llm = LLM(model)
    one = SamplingParams(temperature=0, max_tokens=1, logprobs=1)

    def serve(count: int) -> None:
        """A request that ends, one that is given up, one that is refused."""
        for i in range(count):
            llm.generate([[i % 299, 5]], one)
            abandoned = llm.stream([i % 299, 6])
            next(abandoned)
            abandoned.close()
            with pytest.raises(InvalidRequestError):
                llm.generate([[300]], one)

    serve(200)
    gc.collect()
    before = resident_bytes()
    serve(1000)
    gc.collect()
    growth = resident_bytes() - before
    assert_idle(llm)
    return growth


def test_memory_stays_flat_over_many_requests(model: Path) -> None:  # known fault B123
    """In a process of its own: what other tests left behind moves in and out of memory as the kernel likes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__, model], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1000 * 1024


def test_threads_take_turns(llm: LLM) -> None:  # known faults B35, B136
    """Streams read slowly and whole answers, from several threads at once."""
    prompts = ["hello", "fox", "x y", "a", "it is", "b"]
    expected = [o.outputs[0].text for o in llm.generate(prompts, GREEDY)]
    texts = [""] * len(prompts)

    def ask(i: int) -> None:
        if i % 2:
            texts[i] = llm.generate(prompts[i], GREEDY)[0].outputs[0].text
            return
        for chunk in llm.stream(prompts[i], GREEDY):
            texts[i] += chunk.text
            time.sleep(0.001)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert texts == expected
    assert_idle(llm)


def test_a_context_longer_than_the_model_s_is_a_warning(
    model: Path, llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:  # known fault B92
    assert "max_model_len" not in caplog.text
    longer = LLM(model, max_model_len=200)
    assert "max_model_len is 200, but the model was made for 128 tokens" in caplog.text
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    (output,) = longer.generate([[5] * 100], params)
    assert len(output.outputs[0].token_ids) == 100
    assert output.outputs[0].token_ids[:28] == llm.generate([[5] * 100], params)[0].outputs[0].token_ids


@pytest.mark.parametrize("bad", [5, "greedy", [5], [None, "greedy"], {"temperature": 0}])
def test_sampling_params_of_another_kind_are_named(llm: LLM, bad: object) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        llm.generate(["x"] * (len(bad) if isinstance(bad, list) else 1), bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        llm.stream("x", bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [5, None, "hi", [5], [[]], {"role": "user"}, [{"role": "user", "content": "hi"}, 5]])
def test_messages_of_another_kind_are_named(llm: LLM, bad: object) -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        llm.chat(bad, GREEDY)  # type: ignore[arg-type]


if __name__ == "__main__":  # as test_memory_stays_flat_over_many_requests does
    print(growth_over_many_requests(Path(sys.argv[1])))
