"""`hotloop batch`: a file of requests through the engine, errors per line, and restarts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hotloop
from engine.engines import assert_idle
from hotloop import LLM, SamplingParams
from hotloop.engine.fingerprint import system_fingerprint
from hotloop.server.batch_file import BatchOutput
from hotloop.server.batch_run import BatchCounts, run_batch

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}})


def run(llm: LLM, tmp_path: Path, lines: list[str], model: str | None = None) -> tuple[BatchCounts, dict[Any, Any]]:
    """Counts of the run, and the output's lines by custom_id (by line number where there is none)."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    with BatchOutput(target) as output:
        counts = run_batch(llm, source, output, model, lambda counts: None)
    answers = [json.loads(text, parse_constant=pytest.fail) for text in target.read_text().splitlines()]
    by_id = {a["custom_id"] if a["custom_id"] is not None else a["error"]["line"]: a for a in answers}
    assert len(by_id) == len(answers)
    return counts, by_id


def test_answers_are_those_of_generate(llm: LLM, tmp_path: Path) -> None:
    greedy = {"temperature": 0, "max_tokens": 8, "seed": 1}
    lines = [line(f"c{i}", prompt=f"hello {i}", **greedy) for i in range(40)]
    lines.append(line("chat", CHAT, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2, **greedy))
    lines.append(line("many", prompt=["a", "b", "c"], n=2, logprobs=1, **{**greedy, "temperature": 1}))
    counts, answers = run(llm, tmp_path, lines)
    assert (counts.answered, counts.failed, counts.skipped) == (42, 0, 0)
    params = SamplingParams(temperature=0, max_tokens=8, seed=1)
    for i in range(40):
        answer = answers[f"c{i}"]
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        body = answer["response"]["body"]
        (expected,) = llm.generate(f"hello {i}", params)
        assert body["choices"][0]["text"] == expected.outputs[0].text
        assert body["choices"][0]["finish_reason"] == expected.outputs[0].finish_reason
        assert body["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
        assert body["usage"]["completion_tokens"] == len(expected.outputs[0].token_ids)
        assert (body["object"], body["model"], body["seed"]) == ("text_completion", "m", 1)
        assert body["system_fingerprint"] == system_fingerprint(llm.path, llm.config)
    chat = answers["chat"]["response"]["body"]
    (expected,) = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(temperature=0, max_tokens=8, logprobs=2))
    message = chat["choices"][0]
    assert (chat["object"], message["message"]["role"]) == ("chat.completion", "assistant")
    assert message["message"]["content"] == expected.outputs[0].text
    for entry in message["logprobs"]["content"]:
        assert [t["logprob"] for t in entry["top_logprobs"]] == sorted([t["logprob"] for t in entry["top_logprobs"]])[::-1]
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["bytes"] == entry["bytes"]  # greedy
    many = answers["many"]["response"]["body"]
    assert [c["index"] for c in many["choices"]] == list(range(6))
    several = SamplingParams(temperature=1, max_tokens=8, seed=1, n=2, logprobs=1)
    texts = [c.text for o in llm.generate(["a", "b", "c"], several) for c in o.outputs]
    assert [c["text"] for c in many["choices"]] == texts
    for choice in many["choices"]:
        logprobs = choice["logprobs"]
        assert len({len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
        assert all(len(top) == 1 for top in logprobs["top_logprobs"])
    assert_idle(llm)


def test_errors_stay_on_their_lines(llm: LLM, tmp_path: Path) -> None:
    lines = [
        "{broken", line("a", prompt="x", max_tokens=2), line("a", prompt="x"), line("typo", prompt="x", max_token=3),
        line("long", prompt=[5] * 500), line("empty", prompt=""), line("ids", prompt=[9999]),
        line("none", CHAT, messages=[]), line("other", prompt="x", model="n"), line("last", prompt="x", max_tokens=2),
        line("huge", prompt="x", max_tokens=0),
    ]  # fmt: skip
    counts, answers = run(llm, tmp_path, lines)
    assert (counts.answered, counts.failed) == (2, 9)
    messages = {
        1: "not valid JSON", 3: "also that of line 2", "typo": "did you mean 'max_tokens'", "long": "500 tokens",
        "empty": "the prompt is empty", "ids": "9999", "none": "messages", "other": "one per run", "huge": "max_tokens is 0",
    }  # fmt: skip
    assert answers.keys() == {"a", "last", *messages}
    for key, message in messages.items():
        answer = answers[key]
        assert message in answer["error"]["message"]
        assert answer["response"]["status_code"] == 400
        assert answer["response"]["body"]["error"]["message"] == answer["error"]["message"]
    assert_idle(llm)
    assert run(llm, tmp_path, lines) == (BatchCounts(skipped=11), answers)  # errors are answers too


def test_a_restart_does_what_is_missing(llm: LLM, tmp_path: Path) -> None:
    lines = [line(f"c{i}", prompt=f"hello {i}", max_tokens=3, seed=i) for i in range(10)]
    counts, first = run(llm, tmp_path, lines[:6])
    path = tmp_path / "out.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])  # the last line is torn
    counts, answers = run(llm, tmp_path, lines)
    assert (counts.answered, counts.skipped) == (5, 5)
    assert answers.keys() == {f"c{i}" for i in range(10)}
    texts = {key: a["response"]["body"]["choices"][0]["text"] for key, a in answers.items()}
    assert all(texts[key] == a["response"]["body"]["choices"][0]["text"] for key, a in first.items())
    assert path.read_bytes()[: len(whole) - 400].startswith(whole.splitlines()[0])  # appended to, not rewritten


def test_one_model_answers_all_where_it_was_named(llm: LLM, tmp_path: Path) -> None:
    lines = [line("a", prompt="x", max_tokens=2, model="gpt"), line("b", prompt="x", max_tokens=2, model=None)]
    counts, answers = run(llm, tmp_path, lines, model="tiny")
    assert counts.answered == 2
    assert answers["a"]["response"]["body"]["model"] == "tiny"


def test_the_command_says_where_errors_are_and_that_they_count_as_done(model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a", prompt="a", max_tokens=1) + "\n" + line("b") + "\n")
    environment = {**os.environ, "HOTLOOP_HOME": str(tmp_path), "PYTHONPATH": str(Path(hotloop.__file__).parents[1])}
    command = [sys.executable, "-m", "hotloop.cli.main", "batch", source, target, "--model", model]
    said = [subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stderr for _ in range(2)]
    assert f"1 answered, 1 failed ({target} says why), 0 done before" in said[0]
    assert f"all 2 lines were done before; errors count: a line taken out of {target} is done again" in said[1]


def test_killed_and_started_again_until_it_is_done(model: Path, tmp_path: Path) -> None:
    """kill -9 at any time loses no finished line, and the answers are those of one run."""
    source, target, reference = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    params = {"max_tokens": 100, "ignore_eos": True, "temperature": 1}
    source.write_text("".join(line(f"c{i}", prompt=f"p {i}", seed=i, **params) + "\n" for i in range(120)))
    environment = {**os.environ, "HOTLOOP_HOME": str(tmp_path), "PYTHONPATH": str(Path(hotloop.__file__).parents[1])}

    def start(out: Path) -> subprocess.Popen[str]:
        arguments = ["batch", source, out, "--model", model, "--max-num-seqs", "4"]
        command = [sys.executable, "-m", "hotloop.cli.main", *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    _, stderr = (process := start(reference)).communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "max_num_seqs 4" in stderr  # the resolved values
    assert "120 answered, 0 failed, 0 done before" in stderr
    done = 0
    for wanted in (3, 40, 80):
        process = start(target)
        deadline_s = time.monotonic() + 60
        while done < wanted and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.005)
            done = target.read_bytes().count(b"\n") if target.exists() else 0
        process.send_signal(signal.SIGKILL)
        process.communicate()
    _, stderr = (process := start(target)).communicate(timeout=120)
    assert process.returncode == 0, stderr
    whole = target.read_bytes()
    assert "all 120 lines were done before" in start(target).communicate(timeout=120)[1]
    assert target.read_bytes() == whole

    def texts(path: Path) -> dict[str, str]:
        answers = [json.loads(text) for text in path.read_text().splitlines()]
        assert len(answers) == 120
        return {a["custom_id"]: a["response"]["body"]["choices"][0]["text"] for a in answers}

    assert texts(target) == texts(reference)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.jsonl", "out.jsonl"], "nothing.jsonl is not a file"),
        (["in.jsonl", "in.jsonl"], "is the input"),
        (["no_model.jsonl", "out.jsonl"], "use --model"),
    ],
)
def test_wrong_usage_is_one_clean_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "in.jsonl").write_text(line("a", prompt="x") + "\n")
    (tmp_path / "no_model.jsonl").write_text("{}\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(hotloop.__file__).parents[1])}
    command = [sys.executable, "-m", "hotloop.cli.main", "batch", *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
