"""Rope frequencies against transformers' (tests/golden/models/rope.npz) and the formulas in floats."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden_models import GOLDEN_DIR, ROPE_CASES, RopeCase
from hotloop.models.registry import load_model_spec
from hotloop.ops.protocol import Rope
from hotloop.ops.rope import RopeScaling, rope_frequencies, yarn_attention_factor
from hotloop.weights.gguf import GGUFFile
from tiny_models import write_tiny_model


def rope_of(case: RopeCase, path: Path) -> Rope:
    metadata = {f"llama.{key}": value for key, value in case.metadata.items()}
    write_tiny_model(
        path,
        head_dim=case.head_dim,
        rope_base=case.base,
        context_length=case.context_length,
        freq_factors=case.freq_factors,
        metadata=metadata,
        num_layers=1,
    )
    with GGUFFile.open(path) as gguf:
        rope = load_model_spec(gguf).config.layers[0].rope
        assert rope is not None
        return rope.rope()


@pytest.mark.parametrize("case", ROPE_CASES, ids=lambda case: case.name)
def test_cos_and_sin_are_those_of_transformers(case: RopeCase, tmp_path: Path) -> None:  # known fault B92
    rope = rope_of(case, tmp_path / "m.gguf")
    *golden, factor = np.load(GOLDEN_DIR / "rope.npz")[case.name]
    assert rope.inv_freq.dtype == np.float64
    # transformers computes base^x, two roundings and a pow of 1 ulp or so, and blends, in float32.
    np.testing.assert_allclose(rope.inv_freq, golden, rtol=8 * 2.0**-24)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)
    position = case.context_length // 4
    np.testing.assert_allclose(
        np.cos(position * rope.inv_freq), np.cos(position * np.array(golden)), atol=position * 8 * 2.0**-24
    )


@given(st.integers(1, 128), st.floats(1.5, 1e7))
def test_frequencies_are_powers_of_the_base(half: int, base: float) -> None:
    frequencies = rope_frequencies(2 * half, base)
    exponents = -np.arange(half) / half
    np.testing.assert_allclose(frequencies, np.power(base, exponents), rtol=1e-13)
    assert frequencies[0] == 1.0


def test_frequencies_are_correctly_rounded() -> None:
    # 10000^(-i/2) for i = 0, 1 and 16^(-i/4): exactly representable or the nearest double.
    assert rope_frequencies(4, 10000.0).tolist() == [1.0, 0.01]
    assert rope_frequencies(8, 16.0).tolist() == [1.0, 0.5, 0.25, 0.125]


def test_every_scaling_of_factor_one_is_none() -> None:
    plain = rope_frequencies(64, 10000.0)
    scalings: tuple[RopeScaling, ...] = ("linear", "ntk", "yarn")
    for scaling in scalings:
        scaled = rope_frequencies(64, 10000.0, scaling=scaling, factor=1.0, original_context=4096)
        np.testing.assert_array_equal(scaled, plain)
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(0.5) == 1.0


@given(st.floats(1.01, 64))
def test_yarn_leaves_fast_pairs_and_stretches_slow_ones(factor: float) -> None:
    plain = rope_frequencies(128, 10000.0)
    scaled = rope_frequencies(128, 10000.0, scaling="yarn", factor=factor, original_context=4096)
    stretch = plain / scaled
    turns = 4096 * plain / (2 * math.pi)
    np.testing.assert_allclose(stretch[turns > 33], 1, rtol=1e-12)
    np.testing.assert_allclose(stretch[turns < 0.9], factor, rtol=1e-12)
    assert (np.diff(stretch) >= -1e-12).all()
    assert yarn_attention_factor(factor) == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-14)


def test_yarn_stretches_fully_from_the_last_element_of_a_head_at_the_latest() -> None:
    """Pair 22.5 makes one turn and pair -5 a thousand: the blend runs from pair 0 to 15, as in transformers."""
    plain = rope_frequencies(16, 10.0)
    scaled = rope_frequencies(16, 10.0, scaling="yarn", factor=4.0, original_context=4096, beta_fast=1000.0)
    stretch = np.arange(8) / 15
    np.testing.assert_allclose(scaled, plain / 4 * stretch + plain * (1 - stretch), rtol=1e-14)
