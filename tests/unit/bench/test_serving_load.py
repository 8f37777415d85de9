"""`hotloop bench serve` against a scripted server. What is asserted does not depend on how fast anything runs."""

import asyncio
import json
import sys
import tomllib
from importlib.resources import files
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from fake_openai import Body, FakeOpenAI, chunk, event, stream, whole
from hotloop.bench.serving.answers import Answer
from hotloop.bench.serving.connection import Address, exchange
from hotloop.bench.serving.figures import Limits, distribution, figures
from hotloop.bench.serving.load import Run, poisson_arrivals_s, run_closed
from hotloop.bench.serving.prompts import Lengths, TokenCount, random_words
from hotloop.bench.serving.serve import ServeOptions, bench_serve
from hotloop.bench.serving.target import find_target
from hotloop.cli import main as cli
from hotloop.errors import HotloopError, InvalidRequestError

SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["bench_serve"]
SMALL = {
    "concurrency": 3, "num_requests": 7, "num_warmup": 2, "prompt_tokens": Lengths(20, 50), "output_tokens": Lengths(2, 5),
    "timeout_s": 20.0,
}  # fmt: skip


def bench(server: FakeOpenAI, **options: Any) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []

    async def run() -> dict[str, Any]:
        async with server.running() as url:
            return await bench_serve(ServeOptions(url, **{**SMALL, **options}), lines.append)

    return asyncio.run(run()), lines


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_run(endpoint: Any) -> None:
    server = FakeOpenAI(stream)
    result, lines = bench(server, endpoint=endpoint, seed=5)
    assert set(result) == set(SCHEMA) - {"distribution"}
    assert set(result["ttft_s"]) == set(SCHEMA["distribution"])
    assert (result["num_completed"], result["num_failed"], result["failures"]) == (7, 0, {})
    assert (result["model"], result["length_field"], result["has_usage"]) == ("fake", "ignore_eos", True)
    assert server.most_in_flight == 3
    measured = server.seen[-7:]
    assert len(server.seen) == 2 + 2 + 7, "two probes, the warm-up, the run"
    assert all(body["stream"] and body["ignore_eos"] and body["temperature"] == 0 for body in measured)
    words = [(body.get("prompt") or body["messages"][0]["content"]).split() for body in measured]
    # The server counts 2 + 3 tokens per word: prompts are made for that, to the nearest word.
    assert all(19 <= 2 + 3 * len(w) <= 51 for w in words)
    assert result["prompt_tokens_mean"] == sum(2 + 3 * len(w) for w in words) / 7
    assert len({tuple(w[:4]) for w in words}) == 7, "prompts begin alike"
    assert result["output_tokens_mean"] == sum(body["max_tokens"] for body in measured) / 7
    assert result["tokens_per_event"] == 1.0
    assert result["cached_tokens_mean"] == 1.0
    assert result["tokens_per_s"] == pytest.approx(7 * result["output_tokens_mean"] / result["duration_s"])
    assert (result["good_share"], result["goodput_requests_per_s"]) == (1.0, result["requests_per_s"])
    assert any(line == f"ttft_s: {SCHEMA['ttft_s']}" for line in lines), "definitions are printed"
    assert "seed 5" in lines[0]


def test_a_seed_repeats_prompts_and_lengths_and_none_does_not() -> None:
    def bodies(seed: int | None) -> list[Body]:
        server = FakeOpenAI(stream)
        bench(server, concurrency=1, seed=seed)
        return server.seen

    assert bodies(1) == bodies(1)
    assert bodies(None) != bodies(None)


def test_arrivals_are_poisson_and_seeded() -> None:
    arrivals_s = poisson_arrivals_s(20_001, 50.0, Random(3))
    assert arrivals_s == poisson_arrivals_s(20_001, 50.0, Random(3))
    gaps_s = [after - before for before, after in pairwise(arrivals_s)]
    assert arrivals_s[0] == 0.0
    assert sum(gaps_s) / len(gaps_s) == pytest.approx(0.02, rel=0.05)
    assert sum(gap > 0.02 for gap in gaps_s) / len(gaps_s) == pytest.approx(0.3679, abs=0.02), "exponential"


def test_with_a_rate_all_may_be_in_flight() -> None:
    server = FakeOpenAI(stream)
    result, lines = bench(server, requests_per_s=1e6, concurrency=1, num_warmup=0, output_tokens=Lengths(20, 20))
    assert server.most_in_flight == 7
    assert (result["concurrency"], result["rate_requests_per_s"]) == (None, 1e6)
    assert "1e+06 per second" in lines[0]


def refusing(*fields: str) -> FakeOpenAI:
    """It answers 400 to a body with one of these fields."""

    def script(body: Body) -> Any:
        if known := [name for name in fields if name in body]:
            return [whole({"error": {"message": f"unknown field {known[0]}"}}, "400 Bad Request")]
        return stream(body)

    return FakeOpenAI(script)


@pytest.mark.parametrize(
    ("refused", "length_field", "has_usage"),
    [
        (("ignore_eos",), "min_tokens", True),
        (("ignore_eos", "min_tokens"), None, True),
        (("ignore_eos", "min_tokens", "stream_options"), None, False),
    ],
)
def test_fields_that_a_server_does_not_know_are_left_out(
    refused: tuple[str, ...], length_field: str | None, has_usage: bool
) -> None:
    server = refusing(*refused)
    result, lines = bench(server)
    assert (result["num_failed"], result["length_field"], result["has_usage"]) == (0, length_field, has_usage)
    assert result["output_tokens_mean"] == sum(body["max_tokens"] for body in server.seen[-7:]) / 7
    if not has_usage:
        assert result["prompt_tokens_mean"] is None
        assert any("events with text are counted as tokens" in line for line in lines)


def test_a_server_that_does_not_stream() -> None:
    def script(body: Body) -> list[bytes]:
        usage = {"prompt_tokens": 9, "completion_tokens": body["max_tokens"]}
        return [whole({"choices": [{"text": "abc", "finish_reason": "length"}], "usage": usage})]

    result, lines = bench(FakeOpenAI(script))
    assert (result["num_completed"], result["is_streamed"], result["tpot_s"], result["itl_s"]) == (7, False, None, None)
    assert result["ttft_s"] == result["e2e_s"]
    assert any(line.startswith("not streamed") for line in lines)


def test_failures_are_counted_and_do_not_enter_the_figures() -> None:
    count = 0

    def script(body: Body) -> Any:
        nonlocal count
        count += 1
        if count <= 2 + 2 or count % 3:  # the probes and the warm-up, and two of three
            yield from stream(body)
        elif count % 2:
            yield whole({"error": {"message": "too many"}}, "429 Too Many Requests")
        else:
            pieces = list(stream(body))
            yield from [*pieces[:2], b""]  # cut off after the first token

    result, lines = bench(FakeOpenAI(script))
    assert (result["num_completed"], result["num_failed"]) == (5, 2)
    assert result["failures"] == {"HTTP 429: too many": 1, "the answer ended without a finish reason": 1}
    assert result["good_share"] == 5 / 7
    assert "failed 1 times: HTTP 429: too many" in lines


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (whole({"error": {"message": "wrong key"}}, "401 Unauthorized"), "HTTP 401: wrong key"),
        (whole({"error": {"message": "no such model"}}, "400 Bad Request"), "HTTP 400: no such model"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_a_server_that_answers_nothing(answer: bytes, message: str) -> None:
    with pytest.raises(HotloopError, match=message):
        bench(FakeOpenAI(lambda _: [answer]))


def test_nobody_listens_and_nobody_answers() -> None:
    with pytest.raises(HotloopError, match="cannot connect to 127"):
        asyncio.run(bench_serve(ServeOptions("http://127.0.0.1:9"), lambda _: None))

    def silent(_: Body) -> Any:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        for _ in range(5000):
            yield b": ping\n\n"

    with pytest.raises(HotloopError, match=r"no complete answer within 0\.05 s"):
        bench(FakeOpenAI(silent), timeout_s=0.05)


def test_the_model_and_the_key() -> None:
    server = FakeOpenAI(stream)
    bench(server, api_key="sk-1", extra={"temperature": 0.5, "user": "u"})
    assert all("\r\nAuthorization: Bearer sk-1\r\n" in head for head in server.headers)
    assert all((body["temperature"], body["user"], body["model"]) == (0.5, "u", "fake") for body in server.seen)
    nameless = FakeOpenAI(stream, model=None)
    with pytest.raises(HotloopError, match="name one with --model"):
        bench(nameless)
    assert bench(nameless, model="mine")[0]["model"] == "mine"


def test_bodies_that_end_with_the_connection() -> None:
    def script(_: Body) -> Any:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event({"choices": [{"text": "a"}]})
        yield event({"choices": [{"text": "b", "finish_reason": "stop"}]})

    result, _ = bench(FakeOpenAI(script))
    assert (result["num_completed"], result["output_tokens_mean"]) == (7, 2.0)


def test_reads_keep_their_order_and_times() -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(b"ab"), chunk(b"c"),
              chunk(b"")]  # fmt: skip
    server = FakeOpenAI(lambda _: pieces)

    async def run() -> Any:
        async with server.running() as url:
            address = Address.parse(url)
            return await exchange(address, address.request("POST", "/x", b"{}", None), 20.0)

    result = asyncio.run(run())
    assert (result.status, result.content_type, result.body, result.failure) == (200, "text/plain", b"abc", None)
    times = [time_s for time_s, _ in result.reads]
    assert times == sorted(times)


def test_a_run_keeps_the_order_of_its_requests() -> None:
    server = FakeOpenAI(stream)

    async def run() -> Run:
        async with server.running() as url:
            target = await find_target(Address.parse(url), "completions", None, None, 20.0, {}, Random(0))
            return await run_closed(target, [target.request("a b", n) for n in (9, 1, 5, 2)], 4)

    assert [answer.tokens for answer in asyncio.run(run()).answers] == [9, 1, 5, 2]


def test_goodput_and_distributions() -> None:
    def answer(ttft_s: float, tpot_s: float) -> Answer:
        return Answer(0.0, ttft_s + 2 * tpot_s, (ttft_s, ttft_s + 2 * tpot_s), tokens=3, is_streamed=True)

    run = Run((answer(1.0, 0.1), answer(2.0, 0.1), answer(1.0, 0.3), Answer(0.0, 4.0, error="x")), 0.5)
    result = figures(run, Limits(1.5, 0.2))
    assert run.duration_s == 4.0
    assert (result["goodput_requests_per_s"], result["good_share"]) == (0.25, 0.25)
    assert figures(run, Limits(tpot_s=0.2))["good_share"] == 0.5
    assert figures(run, Limits())["good_share"] == 0.75
    assert result["tokens_per_s"] == 9 / 4
    assert result["tokens_per_event"] == 9 / 6
    assert result["itl_s"]["max"] == pytest.approx(0.6)
    assert distribution([1.0, 2.0, 3.0, 4.0]) == {
        "mean": 2.5, "p50": 2.5, "p90": pytest.approx(3.7), "p95": pytest.approx(3.85), "p99": pytest.approx(3.97), "max": 4.0
    }  # fmt: skip


def test_prompts() -> None:
    count = TokenCount.fit((8, 26), (72, 218))
    assert (count.fixed, count.per_word) == (2.0, 3.0)
    assert [count.words(n) for n in (1, 5, 32)] == [1, 1, 10]
    assert len(random_words(10, Random(0)).split()) == 10


@pytest.mark.parametrize("text", ["0", "5-3", "a", "", "-5", "3-", "1.5"])
def test_lengths_that_make_no_sense(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--prompt-tokens is"):
        Lengths.parse(text, "--prompt-tokens")


def test_lengths() -> None:
    assert Lengths.parse("128", "") == Lengths(128, 128)
    assert str(Lengths.parse("3-5", "")) == "3-5"
    assert {Lengths(3, 5).draw(Random(i)) for i in range(50)} == {3, 4, 5}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000, "/v1", False)),
        ("http://h:1/v1/", Address("h", 1, "/v1", False)),
        ("https://h/api/v2", Address("h", 443, "/api/v2", True)),
        ("http://[::1]:80", Address("::1", 80, "/v1", False)),
    ],
)
def test_urls(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h", "http://", "http://h:99999"])
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="URL is"):
        Address.parse(url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "--concurrency is 0"), ({"num_requests": 0}, "--requests is 0"),
        ({"num_warmup": -1}, "--warmup is -1"), ({"requests_per_s": 0.0}, "--rate is 0"),
        ({"timeout_s": float("inf")}, "--timeout is inf"), ({"limits": Limits(ttft_s=-1.0)}, "--ttft-limit is -1"),
        ({"limits": Limits(tpot_s=float("nan"))}, "--tpot-limit is nan"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ServeOptions("http://h", **options)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeOpenAI(stream)
    with server.in_thread() as url:
        command = ["hotloop", "bench", "serve", url, "--requests", "3", "--concurrency", "2", "--prompt-tokens", "9"]
        options = ["--output-tokens", "2-3", "--endpoint", "chat", "--body", '{"user": "u"}', "--json"]
        monkeypatch.setattr(sys, "argv", [*command, *options])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    assert exit_.value.code == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["num_completed"] == 3
    assert "completed 3, failed 0" in err
    assert server.seen[-1]["user"] == "u"


def test_the_command_fails_if_nothing_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 0

    def script(body: Body) -> Any:
        nonlocal count
        count += 1
        return stream(body) if count <= 2 else [whole({"error": "busy"}, "503 Service Unavailable")]

    with FakeOpenAI(script).in_thread() as url:
        monkeypatch.setattr(sys, "argv", ["hotloop", "bench", "serve", url, "--requests", "2", "--warmup", "0"])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    assert exit_.value.code == 1
    assert "failed 2 times: HTTP 503: busy" in capsys.readouterr().out


@pytest.mark.parametrize("body", ["{", "[]", "5"])
def test_a_body_that_is_no_object(
    body: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hotloop", "bench", "serve", "http://h", "--body", body])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    assert "--body is" in capsys.readouterr().err
