"""What travels between the processes arrives as it was."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotloop.config import EngineConfig
from hotloop.engine.client import EngineInfo
from hotloop.engine.wire import (
    Abort,
    Add,
    Logged,
    Ready,
    Refused,
    Start,
    StartFailed,
    StepDone,
    decode_command,
    decode_report,
    encode,
)
from hotloop.request import Request, RequestId, Timeline, TokenDelta, TokenLogprobs
from hotloop.sampling_params import SamplingParams
from hotloop.telemetry.steps import StepRecord, StepReport

INTS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(width=64)  # NaN and infinities too
TIMES = st.floats(0, 1e9)


def values(request: Request) -> Mapping[str, Any]:
    return {f.name: getattr(request, f.name) for f in fields(request)}


@given(
    ids=st.lists(INTS),
    output=st.lists(INTS),
    seed=st.integers(-(2**63), 2**64 - 1),
    temperature=st.none() | st.floats(0, 1e30),
    bias=st.none() | st.dictionaries(INTS, st.floats(-100, 100)),
    stop=st.none() | st.text(min_size=1).filter(lambda s: s.isprintable()) | st.lists(st.just("ab"), max_size=3),
    salt=st.text(st.characters(exclude_categories=["Cs"])),
    deadline_s=st.none() | TIMES,
    mu=st.none() | TIMES,
)
def test_requests(
    ids: list[int], output: list[int], seed: int, salt: str, deadline_s: float | None, mu: float | None, **params: Any
) -> None:
    params |= {"logit_bias": params.pop("bias"), "bad_words": ["x"], "allowed_token_ids": [3], "mirostat": 2}
    request = Request(
        RequestId("a"), ids, SamplingParams(**params), seed, 10, frozenset(ids), 1.5, output, 3, 2, -1, deadline_s, salt,
        RequestId("b"), bad_word_ids=((1, 2), (3,)), dry_breakers=(((1, 2), ((),)), ((3,), ((4, 5), (6,)))), mirostat_mu=mu,
    )  # fmt: skip
    message = decode_command(encode(Add([request])))
    assert isinstance(message, Add)
    (got,) = message.requests
    assert values(got) == values(request)
    assert type(got.output_token_ids) is list


def test_collections_and_numbers_that_parameters_let_through() -> None:
    params = SamplingParams(
        temperature=np.float64(0.7), stop_token_ids={5: 1}.keys(), stop=("a", "b"), logit_bias={"7": np.float64(1.5)}
    )  # type: ignore[arg-type]
    request = Request(RequestId("a"), [1], params, 0, 10, frozenset())
    message = decode_command(encode(Add([request])))
    assert isinstance(message, Add)
    got = message.requests[0].params
    assert (got.temperature, list(got.stop_token_ids or ()), got.stop_strings) == (0.7, [5], ("a", "b"))
    assert got.logit_bias == {7: 1.5}


@given(st.lists(st.tuples(INTS, FLOATS), max_size=20), st.lists(TIMES, min_size=9, max_size=9), FLOATS)
def test_steps(top: list[tuple[int, float]], times: list[float], logprob: float) -> None:
    timeline = Timeline(*times, 12, 3, 1, 5.5, 0.25, 7, 4, 2)
    deltas = [
        TokenDelta(RequestId("a"), (7, 8), (TokenLogprobs(7, logprob, 1, tuple(top)),), "stop", None, timeline),
        TokenDelta(RequestId("b"), (), (), None, "an error", None, "deadline"),
        TokenDelta(
            RequestId("c"), (9,), (), None, None, timeline, mirostat_mu=logprob,
            prompt_logprobs=(TokenLogprobs(7, logprob, 2, tuple(top)), TokenLogprobs(8, 0.0, 1, ())),
        ),
    ]
    record = StepRecord(*times[:6], 1, 2, 3, 4, 5, 6, 7, 2**40, 2**41)
    for report in (StepReport(record, 1, 2, 3, 4, 5, 6), StepReport(None, 0, 0, 4, 4, 0, 0)):
        message = StepDone(report, deltas)
        got = decode_report(encode(message))
        assert repr(got) == repr(message)  # NaN is not equal to itself
        assert isinstance(got, StepDone)
        assert isinstance(got.deltas[0], TokenDelta)


def test_everything_else() -> None:
    config = EngineConfig(max_model_len=100, threads=2, isa="scalar")
    for command in (Start("/a/b", config, 20), Abort([RequestId("a")])):
        assert decode_command(encode(command)) == command
    info = EngineInfo(config, 10, 2**33, 100, 300, 2**40)
    for report in (
        Ready(info),
        StartFailed("ModelFileError", "x"),
        Refused([RequestId("a")], "x"),
        Logged(20, "a", "b"),
    ):
        assert decode_report(encode(report)) == report
