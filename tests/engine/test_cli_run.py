"""`hotloop run`, `chat`, `inspect` and `machine` as processes on a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import hotloop
from tiny_folders import write_tiny_folder
from tiny_models import checkpoint_tensor, tiny_config, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", formats="Q8_0")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    source = str(Path(hotloop.__file__).parents[1])
    return {**os.environ, "HOTLOOP_HOME": str(tmp_path_factory.mktemp("home")), "PYTHONPATH": source}


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "hotloop.cli.main", *map(str, args)]


def run(environment: dict[str, str], *args: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), input=text, capture_output=True, text=True, env=environment, timeout=120)


def test_any_sampling_parameter_can_be_set(environment: dict[str, str], model: Path) -> None:
    options = ("--json", "--max-tokens", "8", "--temperature", "3", "--seed", "1")
    set_ = ("--set", "allowed_token_ids=[40, 41]", "--set", 'bad_words=["x"]', "--set", "mirostat=2")
    result = run(environment, "run", model, "hello", *options, *set_)
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)["choices"][0]["token_ids"]) <= {40, 41}
    for wrong, message in (
        ("typical=1", "typical_p"), ("typical_p", "no JSON"), ("bad_words=x", "no JSON"), ("typical_p=2", "in (0, 1]"),
        ("top_k=5", "once"),
    ):  # fmt: skip
        result = run(environment, "run", model, "hello", "--set", wrong)
        assert result.returncode == 1
        assert message in result.stderr


def test_a_hugging_face_folder_is_a_model(environment: dict[str, str], tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "Tiny-0.5B", num_shards=2, generation={"temperature": 0.0})
    gguf = write_tiny_model(tmp_path / "tiny.gguf")
    answers = []
    for model, more in ((folder, ()), (gguf, ("--temperature", "0")), (folder, ("--no-recommended-sampling", "--seed", "4"))):
        result = run(environment, "run", model, "hello", "--json", "--max-tokens", "8", "--raw", *more)
        assert result.returncode == 0, result.stderr
        answers.append(json.loads(result.stdout)["choices"][0]["token_ids"])
    assert answers[0] == answers[1] != answers[2]
    facts = json.loads(run(environment, "inspect", folder, "--json").stdout)
    assert (facts["architecture"], facts["name"], facts["runs"]) == ("llama", "Tiny-0.5B", True)
    assert facts["file_bytes"] == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"")
    result = run(environment, "run", folder, "hello")
    assert result.returncode == 1
    assert "model-00002-of-00002.safetensors: 0 bytes cannot hold a safetensors header" in result.stderr
    (folder / "config.json").unlink()
    result = run(environment, "run", folder, "hello")
    assert result.returncode == 1
    assert "is a folder without config.json" in result.stderr


def test_json_has_the_documented_fields(environment: dict[str, str], model: Path) -> None:
    result = run(environment, "run", model, "hello", "--json", "--max-tokens", "5", "--seed", "3")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer.keys() == {"model", "prompt_token_ids", "choices", "seed", "usage", "timings"}
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "text", "token_ids", "finish_reason"}
    assert answer["seed"] == 3
    json.dumps(answer, allow_nan=False)
    assert answer["usage"] == {
        "prompt_tokens": len(answer["prompt_token_ids"]),
        "completion_tokens": len(choice["token_ids"]),
    }
    schema = tomllib.loads((Path(hotloop.__file__).parent / "telemetry" / "schema.toml").read_text())
    assert answer["timings"].keys() == schema["timings"].keys()


def test_json_of_a_single_token_is_strict_json(environment: dict[str, str], model: Path) -> None:
    """One token has no decode rate; the figures are numbers all the same (known fault B17)."""
    result = run(environment, "run", model, "hello", "--json", "--max-tokens", "1")
    answer = json.loads(result.stdout, parse_constant=lambda constant: pytest.fail(constant))
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["timings"]["decode_tokens_per_s"] == 0


def test_the_same_seed_gives_the_same_text_streamed_or_not(
    environment: dict[str, str], model: Path
) -> None:  # known fault B37
    options = ["--max-tokens", "20", "--seed", "5", "--temperature", "1.3"]
    streamed = run(environment, "run", model, "hello", *options)
    whole = json.loads(run(environment, "run", model, "hello", *options, "--json").stdout)
    assert streamed.stdout == whole["choices"][0]["text"] + "\n"
    from_stdin = run(environment, "run", model, "-", *options, text="hello")
    assert from_stdin.stdout == streamed.stdout


def test_raw_skips_the_chat_template(environment: dict[str, str], model: Path) -> None:
    raw = json.loads(run(environment, "run", model, "hello", "--raw", "--json", "--max-tokens", "1").stdout)
    chat = json.loads(run(environment, "run", model, "hello", "--json", "--max-tokens", "1").stdout)
    assert len(chat["prompt_token_ids"]) > len(raw["prompt_token_ids"])


def test_stats_and_suggestion_are_on_stderr(environment: dict[str, str], model: Path) -> None:
    options = ["--max-tokens", "5", "--temperature", "0", "--seed", "77", "--stats", "--suggest"]
    result = run(environment, "run", model, "hello", *options)
    assert result.returncode == 0
    stats, suggestion = result.stderr.strip().splitlines()[-2:]
    for part in ("prompt tokens", "output tokens", "TTFT", "tokens/s", "GB/s", "%", "seed 77"):
        assert part in stats
    assert "tokens/s" in suggestion
    assert "GB/s" not in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--temperature", "-1"], "temperature is -1"),
        (["--top-p", "0"], "top_p is 0"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--kv-dtype", "f8"], "kv_dtype is 'f8'"),
        (["--quantize", "q9"], "quantize is 'q9'; it must be one of f32, f16"),
        (["--isa", "sse2"], "'sse2' is not usable"),
        (["--stop", ""], "non-empty"),
        (["--max-model-len", "3"], "context length is 3"),
    ],
)
def test_bad_options_are_one_clean_line(environment: dict[str, str], model: Path, args: list[str], message: str) -> None:
    result = run(environment, "run", model, "hello there", *args)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_broken_model_file_is_one_clean_line(environment: dict[str, str], model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-1000])
    for name in (cut, tmp_path / "none.gguf"):
        result = run(environment, "run", name, "hello")
        assert result.returncode == 1
        assert name.name in result.stderr
        assert "Traceback" not in result.stderr


def test_chat_keeps_the_conversation(environment: dict[str, str], model: Path) -> None:
    options = ["--temperature", "0", "--max-tokens", "4"]
    result = run(environment, "chat", model, *options, text="hello\n\nagain\n/reset\nhello\n/exit\n")
    assert result.returncode == 0, result.stderr
    assert run(environment, "chat", model, *options, text="hello\n").stdout in result.stdout
    # without a prompt `run` opens the same chat
    assert run(environment, "run", model, *options, text="hello\n").stdout == run(
        environment, "chat", model, *options, text="hello\n"
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends an answer: the logits of all but the byte tokens, so of EOS, are 0."""
    head = checkpoint_tensor(tiny_config(), 0, "output.weight", (300, 64))
    head[256:] = 0
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    return write_tiny_model(path, context_length=50_000, tensors={"output.weight": ("F32", head.shape, head)})


ENDLESS = ("--temperature", "0", "--max-tokens", "50000")


def start(environment: dict[str, str], *args: str | Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    unbuffered = {**environment, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command(*args), stdin=pipe, stdout=pipe, stderr=pipe, env=unbuffered)


def test_ctrl_c_stops_the_answer_not_the_chat(environment: dict[str, str], endless: Path) -> None:
    process = start(environment, "chat", endless, *ENDLESS)
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(2):
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        seen = process.stdout.read(1)
        assert seen
        process.send_signal(signal.SIGINT)
        while not seen.endswith(b" [stopped]\n"):
            more = process.stdout.read(1)
            assert more, "the chat ended"
            seen += more
    stdout, stderr = process.communicate(b"/exit\n", timeout=60)
    assert (process.returncode, stdout) == (0, b"")
    assert b"Traceback" not in stderr


INTERRUPTED_IMPORT = """
import enum, os, signal
import numpy
make = enum.EnumMeta.__call__
def interrupted_make(*args, **names):
    os.kill(os.getpid(), signal.SIGINT)
    return make(*args, **names)
enum.EnumMeta.__call__ = interrupted_make
try:
    import hotloop._native
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_the_extension_module_is_made_waits(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_ctrl_c_in_an_answer_ends_run_with_130(environment: dict[str, str], endless: Path) -> None:
    process = start(environment, "run", endless, "hello", *ENDLESS)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.strip() == b""


@pytest.mark.parametrize("after_s", [0.1, 0.3, 0.7])
def test_ctrl_c_at_any_time_ends_run(environment: dict[str, str], endless: Path, after_s: float) -> None:
    process = start(environment, "run", endless, "hello", *ENDLESS)
    time.sleep(after_s)  # anywhere in its life: the interpreter may still start, imports and loading may run
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    if b"init_import_site" in stderr:
        return  # before the interpreter itself was there
    assert process.returncode in (130, -signal.SIGINT)
    if process.returncode == 130:
        assert b"Traceback" not in stderr


def test_inspect_tells_what_a_model_needs(environment: dict[str, str], model: Path) -> None:
    facts = json.loads(run(environment, "inspect", model, "--json").stdout)
    assert facts["runs"] is True
    assert facts["architecture"] == "llama"
    assert facts["chat_template"] is True
    assert facts["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert facts["kv_bytes_per_token_by_dtype"]["int8"] == 2 * 2 * 2 * (16 + 2)
    assert facts["context_tokens"] == 128
    assert sum(facts["tensor_bytes_by_format"].values()) < facts["file_bytes"]
    text = run(environment, "inspect", model).stdout
    for word in ("architecture", "parameters", "Q8_0", "KV cache", "decode ceiling", "memory"):
        assert word in text


def test_inspect_says_why_a_model_does_not_run(environment: dict[str, str], tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "spiral", "general.name": "a\x1b[31mb"}
    odd = write_tiny_model(tmp_path / "odd.gguf", "llama", metadata=metadata)
    facts = json.loads(run(environment, "inspect", odd, "--json").stdout)
    assert facts["runs"] is False
    assert "spiral" in facts["reason"]
    assert r"a\x1b[31mb" in run(environment, "inspect", odd).stdout


def test_machine_reports_the_ceiling(environment: dict[str, str]) -> None:
    facts = json.loads(run(environment, "machine", "--json", "--seconds", "0.2").stdout)
    assert 1e8 < facts["read_bandwidth_bytes_per_s"] < 1e13
    assert facts["min_bytes_per_s"] <= facts["read_bandwidth_bytes_per_s"] <= facts["max_bytes_per_s"]
    assert "scalar" in facts["isas"]
    assert "GB/s" in run(environment, "machine", "--seconds", "0.2").stdout


def test_an_answer_with_a_form(environment: dict[str, str], model: Path, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text('{"enum": ["né", 12]}', encoding="utf-8")
    grammar.write_text('root ::= "[" [0-9] "]"', encoding="utf-8")
    for option, value, answers in (
        ("--json-schema", schema, ('"né"', "12")),
        ("--grammar", grammar, tuple(f"[{i}]" for i in range(10))),
        ("--regex", "a{3}", ("aaa",)),
    ):
        result = run(environment, "run", model, "hello", option, value)
        assert result.stdout.removesuffix("\n") in answers, result.stderr
    for option, value in (("--json-schema", tmp_path / "missing"), ("--regex", "(["), ("--grammar", schema)):
        result = run(environment, "run", model, "hello", option, value)
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert len(result.stderr.splitlines()) < 4


def test_json_shows_all_that_was_asked_for(environment: dict[str, str], model: Path) -> None:  # known fault B137
    options = ["--set", "logprobs=1", "--set", "prompt_logprobs=0", "--set", "truncate_prompt_tokens=3", "--max-tokens", "4"]
    result = run(environment, "run", model, "hello there", "--json", *options)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout, parse_constant=lambda constant: pytest.fail(constant))
    (choice,) = answer["choices"]
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["truncated_tokens"] > 0
    for token_id, entry in zip(choice["token_ids"], choice["logprobs"], strict=True):
        assert entry[str(token_id)]["logprob"] <= 0
    result = run(environment, "run", model, "hello", "--set", "logprobs=1")
    assert (result.returncode, result.stdout) == (1, "")
    assert "add --json" in result.stderr
