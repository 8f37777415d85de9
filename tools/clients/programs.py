"""Programs of the command line: curl, llm, aiperf, schemathesis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import litellm
from checks import Server, check

_BIN = Path(sys.executable).absolute().parent
# tiktoken would fetch its encodings; litellm has them with it.
_ENCODINGS = Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers"
_OFFLINE = {"TIKTOKEN_CACHE_DIR": str(_ENCODINGS), "HF_HUB_OFFLINE": "1"}


def run(
    *command: str | Path, env: dict[str, str] | None = None, cwd: str | None = None, timeout_s: float = 300
) -> str:
    """The standard output of a program that must end well."""
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, env={**os.environ, **(env or {})}, cwd=cwd, timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if result.returncode:
        raise AssertionError(f"exit status {result.returncode}:\n{result.stdout[-6000:]}\n{result.stderr[-3000:]}")
    return result.stdout


@check("curl: an answer, a stream, an error")
def curl(server: Server) -> str:
    def post(key: str, **fields: object) -> tuple[str, str]:
        """Body and status."""
        body = {"model": server.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **fields}
        command = ["curl", "-sS", "--no-buffer", "-w", "%{http_code}", f"{server.v1}/chat/completions"]
        headers = ["-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json"]
        output = run(*command, *headers, "-d", json.dumps(body))
        return output[:-3], output[-3:]

    answer, status = post(server.api_key)
    assert status == "200"
    content = json.loads(answer)["choices"][0]["message"]["content"]
    events, status = post(server.api_key, stream=True)
    assert status == "200"
    *lines, done, end = events.split("\n\n")
    assert all(line.startswith("data: {") and "\n" not in line for line in lines)
    assert (done, end) == ("data: [DONE]", "")
    answer, status = post(server.other_key)
    assert status == "401"
    assert json.loads(answer)["error"]["message"]
    assert run("curl", "-sS", f"{server.url}/health")
    return repr(content)


@check("llm: a prompt, streamed and not")
def llm(server: Server) -> str:
    with tempfile.TemporaryDirectory() as folder:
        entry = {"model_id": "local", "model_name": server.model, "api_base": server.v1, "api_key_name": "local"}
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
        command: list[str | Path] = [_BIN / "llm", "-m", "local", "--key", server.api_key, "Why is the sky blue?"]
        options = ["-o", "temperature", "0", "-o", "max_tokens", "24"]
        streamed = run(*command, *options, env={"LLM_USER_PATH": folder})
        whole = run(*command, *options, "--no-stream", env={"LLM_USER_PATH": folder})
        assert whole.strip()
        assert streamed == whole
        usage = run(_BIN / "llm", "logs", "-n", "1", "--json", env={"LLM_USER_PATH": folder})
        assert json.loads(usage)[0]["output_tokens"] > 0
    return repr(whole[:40])


@check("aiperf: 32 streamed chats, 8 at a time")
def aiperf(server: Server) -> str:
    with tempfile.TemporaryDirectory() as folder:
        run(
            _BIN / "aiperf", "profile", "--model", server.model, "--url", server.url, "--endpoint-type", "chat", "--streaming",
            "--api-key", server.api_key, "--tokenizer", "builtin", "--use-server-token-count",
            "--synthetic-input-tokens-mean", "64", "--output-tokens-mean", "32", "--request-count", "32", "--concurrency", "8",
            "--random-seed", "1", "--no-gpu-telemetry", "--no-server-metrics", "--ui", "none", "--artifact-dir", folder,
            env=_OFFLINE,
        )  # fmt: skip
        (report,) = Path(folder).rglob("profile_export_aiperf.json")
        figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == 32
    assert not figures.get("error_summary")
    names = {"time_to_first_token": "TTFT", "inter_token_latency": "ITL", "output_token_throughput": "throughput"}
    assert all(figures[name]["avg"] > 0 for name in names)
    return ", ".join(f"{text} {figures[name]['avg']:.3g} {figures[name]['unit']}" for name, text in names.items())


@check("schemathesis: requests of all kinds")
def schemathesis(server: Server) -> str:
    return fuzz(server, "--max-examples", "50")


@check("schemathesis: requests that the document allows")
def schemathesis_positive(server: Server) -> str:
    options = ["--mode", "positive", "--phases", "fuzzing", "--include-path-regex", "completions"]
    return fuzz(server, "--max-examples", "100", *options)


def fuzz(server: Server, *options: str) -> str:
    """No 5xx, and only what the OpenAPI document says: statuses, content types, shapes."""
    with tempfile.TemporaryDirectory() as folder:  # it leaves files where it runs
        output = run(
            _BIN / "schemathesis", "run", f"{server.url}/openapi.json", "--header", f"Authorization: Bearer {server.api_key}",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
            "--seed", "1", "--suppress-health-check", "all", "--request-timeout", "60", "--no-color", "--continue-on-failure",
            "--warnings", "off", *options, cwd=folder, timeout_s=1200,
        )  # fmt: skip
    return next(line.strip() for line in output.splitlines() if " generated, " in line)
