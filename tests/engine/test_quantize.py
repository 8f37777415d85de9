"""Quantizing on loading, and `hotloop quantize`: the same weights, so the same bits, whichever way."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import hotloop
from engine.jobs import Job, params_of
from engine.processes import bits, engine_process, requests_of, run, undisturbed
from hotloop import LLM, SamplingParams
from hotloop.weights.gguf import GGUFFile
from tiny_folders import stored, write_tiny_folder
from tiny_models import random_tokens, write_tiny_model

SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["quantize_file"]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("models") / "source.gguf", "llama", formats="BF16", hidden_size=256, head_dim=64,
        intermediate_size=512,
    )  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = str(Path(hotloop.__file__).parents[1])
    return {**os.environ, "HOTLOOP_HOME": str(tmp_path_factory.mktemp("home")), "PYTHONPATH": path}


def hotloop_command(environment: dict[str, str], *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hotloop.cli.main", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize("name", ["q4_0", "q4_k_m"])
def test_on_loading_and_as_a_file_it_is_the_same_model(
    name: str, source: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    out = tmp_path / "out.gguf"
    result = hotloop_command(environment, "quantize", source, out, "--type", name.upper(), "--no-report", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["file_bytes"] == out.stat().st_size < source.stat().st_size
    assert facts["type"] == name
    assert facts.keys() == SCHEMA.keys() - {"quality"}
    answers = [
        LLM(path, **options, max_model_len=64).generate([{"prompt_token_ids": random_tokens(3, 20)}], GREEDY)[0].outputs[0]
        for path, options in ((source, {"quantize": name}), (out, {}), (source, {"quantize": name, "threads": 2}))
    ]
    assert len({(tuple(a.token_ids), str(a.logprobs)) for a in answers}) == 1
    original = LLM(source, max_model_len=64).generate([{"prompt_token_ids": random_tokens(3, 20)}], GREEDY)[0].outputs[0]
    assert str(original.logprobs) != str(answers[0].logprobs)


def test_an_engine_that_is_killed_quantizes_to_the_same_bits(source: Path) -> None:
    jobs: list[Job] = [([1, *random_tokens(i, 5 + 3 * i)], params_of(i, 20)) for i in range(4)]
    expected = undisturbed(source, jobs, quantize="q5_k_m")
    with engine_process(source, quantize="q5_k_m") as (client, inputs):
        assert client.info.config.quantize == "q5_k_m"
        killed = []

        def kill_once(num_tokens: int, _: object) -> None:
            if num_tokens > 20 and not killed:
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
                killed.append(client.pid)

        answers = run(client, requests_of(inputs, jobs), kill_once)
    assert bits(answers) == expected


INTERRUPTED = """
import signal, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
from hotloop.cli.main import main
from hotloop.weights.quantized_model import QuantizedModel
read_rows = QuantizedModel.read_rows
def slow_read_rows(model, name, start, stop):
    if name == "output_norm.weight":
        print("nearly done", flush=True)
        time.sleep(60)
    return read_rows(model, name, start, stop)
QuantizedModel.read_rows = slow_read_rows
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_one_leaves_nothing(
    number: signal.Signals, source: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, "quantize", str(source), str(tmp_path / "out.gguf"), "--type", "q8_0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "nearly done\n"
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_report_compares_with_the_source(source: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    quality = {}
    for name in ("q8_0", "q4_0"):
        result = hotloop_command(environment, "quantize", source, tmp_path / f"{name}.gguf", "--type", name, "--json")
        assert result.returncode == 0, result.stderr
        quality[name] = json.loads(result.stdout)["quality"]
        assert "mean KL divergence" in result.stderr
    assert 0 < quality["q8_0"]["mean_kl_nats"] < quality["q4_0"]["mean_kl_nats"] < 0.1
    assert quality["q4_0"]["top1_agreement"] < quality["q8_0"]["top1_agreement"] <= 1
    assert quality["q8_0"]["source_perplexity"] == quality["q4_0"]["source_perplexity"]


def test_a_model_that_hotloop_cannot_run_is_written_and_not_compared(tmp_path: Path, environment: dict[str, str]) -> None:
    source = write_tiny_model(tmp_path / "in.gguf", formats="F16", metadata={"general.architecture": "mamba"})
    result = hotloop_command(environment, "quantize", source, tmp_path / "out.gguf", "--type", "q8_0", "--json")
    assert result.returncode == 0, result.stderr
    assert "mamba" in json.loads(result.stdout)["quality"]["reason"]
    with GGUFFile.open(tmp_path / "out.gguf") as out:
        assert out.tensors["token_embd.weight"].format == "Q8_0"


def test_what_a_user_gets_wrong(source: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "out.gguf"
    quantized = write_tiny_model(tmp_path / "quantized.gguf", formats="Q5_1")
    for args, message in (
        ((source, out, "--type", "q9"), "'q9' is unknown; choose one of"),
        ((source, source, "--type", "q8_0", "--force"), "is the model itself"),
        ((quantized, out, "--type", "q4_0"), "quantized already"),
        ((source, out, "--type", "q8_0", "--threads", "0"), "threads is 0; it must be an integer from 1 to 1024"),
    ):
        result = hotloop_command(environment, "quantize", *args)
        assert (result.returncode, result.stdout) == (1, "")
        assert message in result.stderr
        assert not out.exists()
    forced = hotloop_command(environment, "quantize", quantized, out, "--type", "q4_0", "--allow-requantize", "--no-report")
    assert forced.returncode == 0, forced.stderr
    assert "Q8_0 where rows are no multiple of the type's superblock: output.weight" in forced.stdout
    assert "no smaller than the source" not in forced.stdout
    out.unlink()
    larger = hotloop_command(environment, "quantize", quantized, out, "--type", "q8_0", "--allow-requantize", "--no-report")
    sizes = r"that is no smaller than the source: its weights take [\d.]+ MB, those of the result [\d.]+ MB\n"
    assert re.search(sizes, larger.stdout), larger.stdout
    result = hotloop_command(environment, "run", quantized, "hi", "--quantize", "q4_0")
    assert result.returncode == 1
    assert "quantized already" in result.stderr


def test_inspect_shows_what_it_would_be(source: Path, environment: dict[str, str]) -> None:
    result = hotloop_command(environment, "inspect", source, "--quantize", "q8_0", "--json")
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["tensor_bytes_by_format"]) == {"Q8_0", "F32"}


def test_a_model_without_logits_is_written_and_not_compared(tmp_path: Path, environment: dict[str, str]) -> None:
    source = write_tiny_folder(tmp_path / "in", tensors={"model.norm.weight": stored("F32", np.full(64, np.nan))})
    result = hotloop_command(environment, "quantize", source, tmp_path / "out.gguf", "--type", "f32", "--json")
    assert result.returncode == 0, result.stderr
    reason = json.loads(result.stdout)["quality"]["reason"]
    assert reason == f"{source}: the model's logits on the text are infinite or no number"
    assert "Warning" not in result.stderr


def test_a_damaged_tensor_has_the_name_that_the_folder_gives_it(tmp_path: Path, environment: dict[str, str]) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    source = write_tiny_folder(tmp_path / "in", tensors={name: stored("F32", np.full((96, 64), np.inf))})
    result = hotloop_command(environment, "quantize", source, tmp_path / "out.gguf", "--type", "q8_0")
    assert result.returncode == 1
    assert f"the tensor '{name}' cannot be quantized: row 0, column 0 is infinite" in result.stderr
    assert not (tmp_path / "out.gguf").exists()
