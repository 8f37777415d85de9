"""What a user's functions get, what they may return, and what they cannot reach."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from hotloop.errors import HotloopError, InvalidRequestError
from hotloop.ops.kernel_set import choose_kernel_set
from hotloop.request import TokenLogprobs
from hotloop.sampling.draw import Draw, Row, Sampler
from hotloop.sampling.processors import LogitsProcessors
from hotloop.sampling.state import SamplerState
from hotloop.sampling_params import SamplingParams

ROW = np.arange(8, dtype=np.float32)


def processed(*functions: Callable[..., Any], output: tuple[int, ...] = (3, 4)) -> Any:
    row = ROW.copy()
    try:
        return LogitsProcessors(functions, [1, 2]).process(row, list(output), 4)
    finally:
        np.testing.assert_array_equal(row, ROW)


class Bias:
    def __init__(self, bias: float) -> None:
        self.bias = bias

    def __call__(self, output_token_ids: tuple[int, ...], logits: Any) -> Any:
        logits[output_token_ids[0]] += self.bias
        return logits


def test_functions_in_their_order_of_either_kind() -> None:
    seen = []

    def with_prompt(prompt_token_ids: Any, output_token_ids: Any, logits: Any) -> Any:
        seen.append((prompt_token_ids, output_token_ids))
        return logits * 2

    def with_default(output_token_ids: Any, logits: Any, more: float = 1.0) -> Any:
        seen.append(output_token_ids)
        return logits + np.float32(more)

    result = processed(with_prompt, Bias(5), with_default, partial(with_default, more=3.0))
    np.testing.assert_array_equal(result, ROW * 2 + [4, 4, 4, 9, 4, 4, 4, 4])
    assert seen == [((1, 2), (3, 4)), (3, 4), (3, 4)]


def test_a_buffer_of_its_own_is_copied() -> None:
    buffer = np.zeros(8, np.float32)
    first = processed(lambda ids, logits: buffer)
    buffer[:] = 7
    assert not first.any()
    view = np.zeros(16, np.float32)[::2]
    assert processed(lambda ids, logits: view).flags.c_contiguous


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ids, logits: 1 // 0, "raised ZeroDivisionError at position 4"),
        (lambda ids, logits: None, "returned NoneType"),
        (lambda ids, logits: list(logits), "returned list"),
        (lambda ids, logits: logits.astype(np.float64), r"returned float64 \[8\]"),
        (lambda ids, logits: logits[:4], r"returned float32 \[4\]"),
        (lambda ids, logits: logits[None], r"returned float32 \[1, 8\]"),
        (lambda ids, logits: np.where(logits == 3, np.float32("nan"), logits), "returned NaN"),
        (lambda ids, logits: np.full_like(logits, -np.inf), "-inf for every token"),
        (lambda ids, logits: np.where(logits == 3, np.float32("inf"), logits), r"returned \+inf"),
        (lambda ids: ids, "raised TypeError"),
        (max, r"logits_processors\[1\] \(max\) raised"),
    ],
)  # fmt: skip
def test_what_is_no_row_is_refused_by_name(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        processed(lambda ids, logits: logits, function)
    assert str(caught.value).startswith("logits_processors[1] (")


class Untold:
    """Says nothing of itself: whatever is asked raises ``error``."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    @property
    def __name__(self) -> str:
        raise self.error("no name")

    @property
    def __signature__(self) -> Any:
        raise self.error("no signature")

    @property
    def __class__(self) -> Any:
        raise self.error("no class")

    def __repr__(self) -> str:
        raise self.error("no text")

    def __call__(self, output_token_ids: Any, logits: Any) -> Any:
        return self if self.error is KeyError else Liar(logits.shape, np.float32, logits)


class Liar(np.ndarray[Any, Any]):
    """A row that raises when it is looked at."""

    @property
    def dtype(self) -> Any:
        raise SystemError("no dtype")

    @property
    def shape(self) -> Any:
        raise SystemError("no shape")


def test_objects_that_raise_whatever_they_are_asked() -> None:
    with pytest.raises(InvalidRequestError, match=r"logits_processors\[0\] \(a function without a name\) returned Untold"):
        processed(Untold(KeyError))
    np.testing.assert_array_equal(processed(Untold(ValueError)), ROW)
    with ThreadPoolExecutor(1) as thread:  # not the main one, whose signals' handlers raise such
        for error in (SystemExit, KeyboardInterrupt, GeneratorExit):
            np.testing.assert_array_equal(thread.submit(processed, Untold(error)).result(), ROW)


def test_what_a_function_sets_of_numpy_s_errors_is_its_own() -> None:
    def strict(output_token_ids: Any, logits: Any) -> Any:
        np.seterr(all="raise")
        return logits

    def overflows(output_token_ids: Any, logits: Any) -> Any:
        np.multiply(logits, np.float32(3e38))
        return logits

    before = np.geterr()
    np.testing.assert_array_equal(processed(strict, overflows), ROW)
    assert np.geterr() == before


def test_one_row_knows_nothing_of_the_others() -> None:
    """A function that writes wherever it can; rows of a plain request, of one that shares its logits, of a broken one."""
    kept = []

    def vandal(output_token_ids: Any, logits: Any) -> Any:
        kept.append(logits)
        for row in kept:
            row[:] = -5
        logits[6] = 1
        return logits

    def state(**params: Any) -> SamplerState:
        sampling = SamplingParams(temperature=0, logprobs=2, **params)
        return SamplerState(sampling, seed=0, prompt_token_ids=[1, 2], output_token_ids=[3], vocab_size=8)

    logits = np.stack([ROW, ROW, ROW[::-1].copy(), np.full(8, np.nan, np.float32)])
    before = logits.copy()
    plain, wild, broken = state(), state(logits_processors=[vandal]), state(logits_processors=[lambda ids, row: None])
    rows = [Row(s, 3) for s in (plain, wild, plain, broken, wild, wild, plain)]
    sampler = Sampler(choose_kernel_set(""))
    results = sampler.draw(logits, rows, logits_rows=[0, 0, 2, 1, 2, 3, 0])
    np.testing.assert_array_equal(logits, before)
    drawn = [r.token_id if isinstance(r, Draw) else r for r in results]
    assert [drawn[i] for i in (0, 1, 2, 4, 6)] == [7, 6, 0, 6, 7]
    assert isinstance(drawn[3], InvalidRequestError)
    assert isinstance(drawn[5], HotloopError)
    assert "the model's logits" in str(drawn[5]), "not the function's fault"
    (alone,) = sampler.draw(ROW[None], [Row(plain, 3)])
    assert isinstance(alone, Draw)
    assert isinstance(results[1], Draw)
    assert alone.logprobs is not None
    expected = sampler.logprobs(ROW[None], [6], 2, 3)[0]
    assert results[1].logprobs == expected == TokenLogprobs(6, expected.logprob, 2, alone.logprobs.top)


@pytest.mark.parametrize("bad", ["f", 5, [5], [lambda i, x: x, None], {"a": 1}, [max] * 17])
def test_what_is_no_list_of_functions_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequestError, match="logits_processors"):
        SamplingParams(logits_processors=bad)
