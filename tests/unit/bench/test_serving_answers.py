"""Times and token counts of answers: pieces of a body with the moments they arrived at, no server."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_openai import event
from hotloop.bench.serving.answers import Answer, read_answer, sse_events
from hotloop.bench.serving.connection import Reply

FINISH = event({"choices": [{"text": "", "finish_reason": "length"}]})
DONE = event(b"[DONE]")


def text(content: str) -> bytes:
    return event({"choices": [{"text": content}]})


def streamed(*reads: tuple[float, bytes], sent_s: float = 10.0, failure: str | None = None) -> Answer:
    return read_answer(sent_s, Reply(200, "text/event-stream", list(reads), failure))


def test_times_of_a_stream() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
    answer = streamed((11.0, text("a")), (12.0, text("b")), (14.0, text("c") + FINISH), (15.0, usage + DONE))
    assert answer.error is None
    assert (answer.text, answer.events_s) == ("abc", (11.0, 12.0, 14.0))
    assert (answer.ttft_s, answer.e2e_s, answer.itl_s) == (1.0, 4.0, [1.0, 2.0])
    assert (answer.tokens, answer.has_usage, answer.prompt_tokens, answer.cached_tokens) == (5, True, 7, None)
    assert answer.tpot_s == 3.0 / 4, "by usage's five tokens, not by the three events"


def test_without_usage_events_with_text_are_tokens() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    said = [event({"choices": [{"delta": {"content": c}}]}) for c in "ab"]
    answer = streamed((11.0, role), (12.0, said[0]), (13.0, said[1]), (16.0, FINISH + DONE))
    assert (answer.tokens, answer.has_usage) == (2, False)
    assert answer.ttft_s == 2.0, "the role is no token"
    assert answer.e2e_s == 6.0, "a last token without text ends where the finish reason arrives"
    assert answer.tpot_s == 4.0


def test_reasoning_is_text_too() -> None:
    answer = streamed((11.0, event({"choices": [{"delta": {"reasoning_content": "hm"}}]})), (12.0, text("a") + FINISH))
    assert answer.text == "hma"
    assert answer.ttft_s == 1.0


def test_one_token_has_no_tpot() -> None:
    assert streamed((11.0, text("a") + FINISH)).tpot_s is None


def test_timings_are_kept() -> None:
    end = event({"choices": [{"text": "", "finish_reason": "stop"}], "timings": {"e2e_s": 1.5}})
    assert streamed((11.0, text("a")), (12.0, end + DONE)).timings == {"e2e_s": 1.5}


def test_an_answer_in_one_piece() -> None:
    body = {"choices": [{"message": {"content": "abc"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    answer = read_answer(10.0, Reply(200, "application/json", [(12.0, json.dumps(body).encode())]))
    assert answer.error is None
    assert (answer.text, answer.tokens, answer.is_streamed) == ("abc", 3, False)
    assert (answer.ttft_s, answer.e2e_s, answer.tpot_s, answer.itl_s) == (2.0, 2.0, None, [])


@pytest.mark.parametrize(
    ("reads", "failure", "error"),
    [
        ([text("a")], None, "the answer ended without a finish reason"),
        ([], None, "the answer ended without a finish reason"),
        ([text("a")], "no complete answer within 3 s", "no complete answer within 3 s"),
        ([text("a"), event({"error": {"message": "the engine\nfailed"}}) + DONE], None, "the engine failed"),
        ([text("a"), event({"error": "plain"})], None, "plain"),
        ([event(b"{"), FINISH], None, "not an OpenAI event"),
        ([event({"choices": 5}), FINISH], None, "not an OpenAI event"),
    ],
)  # fmt: skip
def test_broken_streams(reads: Iterable[bytes], failure: str | None, error: str) -> None:
    answer = streamed(*((11.0, read) for read in reads), failure=failure)
    assert answer.error is not None
    assert answer.error.startswith(error)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, b'{"error": {"message": "draining"}}', "HTTP 503: draining"),
        (404, b"<html>not\n here</html>", "HTTP 404: <html>not here</html>"),
        (500, b"", "HTTP 500: no message"),
        (500, b'"' + b"x" * 1000, 'HTTP 500: "' + "x" * 199),
        (200, b'{"object": "list"}', "the answer ended without a finish reason"),
        (200, b"", "not an OpenAI event"),
    ],
)
def test_refusals(status: int, body: bytes, error: str) -> None:
    answer = read_answer(10.0, Reply(status, "application/json", [(11.0, body)] if body else [], ended_s=12.0))
    assert answer.error is not None
    assert answer.e2e_s == 2.0
    assert answer.error.startswith(error)
    assert len(answer.error) <= 220


@given(
    texts=st.lists(st.text(st.sampled_from("aé漢😀\n\r\u2028\x85 :")), min_size=1, max_size=6),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_events_do_not_depend_on_how_the_body_was_cut(texts: list[str], newline: bytes, cuts: list[int]) -> None:
    events = [json.dumps({"choices": [{"text": t}]}, ensure_ascii=False).encode() for t in texts]
    blocks = [b": a comment" + newline * 2 + b"event: x" + newline + b"data: " + e + newline * 2 for e in events]
    body = b"".join(blocks)
    edges = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    reads = [(float(end), body[begin:end]) for begin, end in pairwise(edges)]
    found = list(sse_events(reads))
    assert [data for _, data in found] == events
    end = 0
    for (time_s, _), block in zip(found, blocks, strict=True):
        end += len(block)
        assert time_s == min(edge for edge in edges if edge >= end), "when the read that completed the event arrived"


def test_data_lines_are_joined_and_a_missing_blank_line_is_forgiven() -> None:
    assert list(sse_events([(1.0, b"data: a\ndata:b\n\nda"), (2.0, b"ta: c")])) == [(1.0, b"a\nb"), (2.0, b"c")]
