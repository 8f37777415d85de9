"""exp, log, tanh, sigmoid: accuracy over all kinds of arguments, special values, the same bits everywhere."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop import _native
from kernels.bitwise import assert_same_bits, ulp_error

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def _arguments() -> F32:
    """A coarse walk over every bit pattern, a fine one where the functions bend, and the special values."""
    patterns = np.arange(0, 2**32, 16381, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate(
        [
            patterns[~np.isnan(patterns)],
            np.linspace(-110, 100, 60_001),
            np.linspace(-1, 1, 60_001),
            np.linspace(0.5, 2, 30_001),
            np.geomspace(1e-45, 3e38, 30_001),
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.722, 88.723, -87.34, -103.97, -103.98],
        ]
    ).astype(np.float32)


X = _arguments()


def _ones(x: F32) -> F32:
    return np.ones_like(x)


def _silu(isa: str, x: F32) -> F32:
    return np.asarray(_native.gated(isa, x, _ones(x), _native.ActivationFunction.silu))


def _gelu(isa: str, x: F32) -> F32:
    return np.asarray(_native.gated(isa, x, _ones(x), _native.ActivationFunction.gelu_tanh))


def _tanh(isa: str, x: F32) -> F32:
    return np.asarray(_native.softcap(isa, x, 1.0))


FUNCTIONS: dict[str, Callable[[str, F32], F32]] = {
    "exp": _native.exp,
    "log": _native.log,
    "tanh": _tanh,
    "silu": _silu,
    "gelu_tanh": _gelu,
}


@pytest.mark.parametrize(
    ("name", "exact", "limit"), [("exp", np.exp, 1.0), ("log", np.log, 1.0), ("tanh", np.tanh, 1.5)]
)
def test_accuracy_in_ulps_over_all_arguments(
    isa: str, name: str, exact: Callable[[F64], F64], limit: float
) -> None:
    with np.errstate(all="ignore"):
        expected = exact(X.astype(np.float64))
        actual = FUNCTIONS[name](isa, X)
        assert ulp_error(actual, expected) <= limit
        infinite = ~np.isfinite(expected.astype(np.float32))
        np.testing.assert_array_equal(actual[infinite], expected.astype(np.float32)[infinite])


def test_silu_is_accurate_where_its_sigmoid_is_normal(isa: str) -> None:
    x = X[np.abs(X) < 80]
    x64 = x.astype(np.float64)
    assert ulp_error(_silu(isa, x), x64 / (1 + np.exp(-x64))) <= 3.0


def test_gelu_tanh_against_its_definition(isa: str) -> None:
    x = X[np.abs(X) < 1e9]
    x64 = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3)
    # Where the result is not negligible the inner value is at most 30; its rounding error is amplified.
    np.testing.assert_allclose(_gelu(isa, x), 0.5 * x64 * (1 + np.tanh(inner)), rtol=8e-7, atol=2e-7)


def test_every_instruction_set_computes_the_scalar_bits(isa: str) -> None:
    for function in FUNCTIONS.values():
        assert_same_bits(function(isa, X), function("scalar", X))


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 33])
def test_tails_equal_whole_vectors_and_stay_inside(isa: str, n: int) -> None:
    x = np.linspace(0.1, 5, 64, dtype=np.float32)
    for function in FUNCTIONS.values():
        assert_same_bits(function(isa, x[:n].copy()), function(isa, x)[:n].copy())


def test_special_values(isa: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, -1.0], np.float32)
    np.testing.assert_array_equal(_native.exp(isa, x)[:5], [np.inf, 0, np.nan, 1, 1])
    np.testing.assert_array_equal(_native.log(isa, x), [np.inf, np.nan, np.nan, -np.inf, -np.inf, np.nan])
    tanh = _tanh(isa, x)
    np.testing.assert_array_equal(tanh[:3], [1, -1, np.nan])
    assert_same_bits(tanh[3:5], np.array([0.0, -0.0], np.float32))


def test_denormal_results_are_kept(isa: str) -> None:
    x = np.array([-100.0, -103.0, -103.9, -104.0], np.float32)
    np.testing.assert_array_equal(_native.exp(isa, x), np.exp(x.astype(np.float64)).astype(np.float32))


def test_tanh_is_odd(isa: str) -> None:
    assert_same_bits(_tanh(isa, -X), -_tanh(isa, X))
