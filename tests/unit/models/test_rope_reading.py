"""Rope scaling is applied once, whichever way a file states it, and chosen for the whole context."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.errors import ModelFileError
from hotloop.models.metadata import ArchMetadata
from hotloop.models.registry import load_model_spec
from hotloop.models.rope import RopeConfig, read_rope
from hotloop.ops.rope import llama3_factors, longrope_attention_factor
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import WritableTensor, WritableValue
from hotloop.weights.model_file import MetadataValue
from tiny_models import write_tiny_model

LONG, SHORT = tuple(2.0 + i for i in range(8)), tuple(1.0 + i / 8 for i in range(8))
LLAMA3: dict[str, WritableValue] = {
    "rope.scaling.type": "llama3",
    "rope.scaling.factor": 8.0,
    "rope.scaling.low_freq_factor": 1.0,
    "rope.scaling.high_freq_factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
LLAMA3_FACTORS = llama3_factors(16, 10000.0, factor=8.0, low=1.0, high=4.0, original_context=64)


def rope_of(
    tmp_path: Path,
    metadata: dict[str, WritableValue] | None = None,
    tensors: dict[str, WritableTensor | None] | None = None,
    architecture: str = "llama",
    **sizes: object,
) -> RopeConfig:
    """The rope of the first layer of a file with these keys, given without the architecture."""
    keys = {f"{architecture}.{key}": value for key, value in (metadata or {}).items()}
    path = write_tiny_model(tmp_path / "m.gguf", architecture, metadata=keys, tensors=tensors, **sizes)
    with GGUFFile.open(path) as gguf:
        rope = load_model_spec(gguf).config.layers[0].rope
    assert rope is not None
    return rope


def inv_freq(rope: RopeConfig) -> list[float]:
    return rope.rope().inv_freq.tolist()


def test_llama3_by_keys_by_tensor_or_by_both_is_the_same(tmp_path: Path) -> None:  # known fault B92
    by_tensor = rope_of(tmp_path, freq_factors=LLAMA3_FACTORS)
    by_keys = rope_of(tmp_path, LLAMA3)
    by_both = rope_of(tmp_path, LLAMA3, freq_factors=LLAMA3_FACTORS)
    assert inv_freq(by_tensor) == inv_freq(by_keys) == inv_freq(by_both)
    as_rounded_elsewhere = tuple(float(np.float32(x * (1 + 1e-6))) for x in LLAMA3_FACTORS)
    assert rope_of(tmp_path, LLAMA3, freq_factors=as_rounded_elsewhere).freq_factors == as_rounded_elsewhere
    slowest = inv_freq(rope_of(tmp_path))[-1]
    assert inv_freq(by_both)[-1] == pytest.approx(slowest / 8, rel=1e-12)


@pytest.mark.parametrize(("context", "expected"), [(256, LONG), (64, SHORT), (32, SHORT)])
@pytest.mark.parametrize("key", [{}, {"rope.scaling.type": "longrope"}, {"rope.scaling.type": "none"}])
@pytest.mark.parametrize("factor", [{}, {"rope.scaling.factor": 4.0}])
@pytest.mark.parametrize("architecture", ["llama", "granite", "phi3"])
def test_longrope_by_tensors_with_or_without_keys(
    architecture: str, factor: dict[str, WritableValue], key: dict[str, WritableValue], context: int,
    expected: tuple[float, ...], tmp_path: Path,
) -> None:  # known fault B92  # fmt: skip
    """A factor says how far the tensors stretch; it scales nothing further."""
    keys = {"rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.5, **factor, **key}
    sizes = {"context_length": context, "long_factors": LONG, "short_factors": SHORT}
    rope = rope_of(tmp_path, keys, architecture=architecture, **sizes)
    plain = np.array(inv_freq(rope_of(tmp_path, architecture=architecture)))
    np.testing.assert_allclose(inv_freq(rope), plain / expected, rtol=1e-13)
    assert rope.rope().attention_factor == 1.5


@pytest.mark.parametrize(
    ("keys", "stretch"), [({}, 4.0), ({"rope.scaling.factor": 16.0}, 16.0), ({"context_length": 64}, 1.0)]
)
def test_longrope_without_an_attention_factor_has_the_papers(
    keys: dict[str, WritableValue], stretch: float, tmp_path: Path
) -> None:
    keys = {"context_length": 256, "rope.scaling.original_context_length": 64, **keys}
    rope = rope_of(tmp_path, keys, long_factors=LONG, short_factors=SHORT)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(stretch) / math.log(64)), rel=1e-14)
    assert longrope_attention_factor(0.5, 64) == 1.0


@pytest.mark.parametrize(
    ("keys", "sizes", "message"),
    [
        ({"rope.scaling.type": "longrope"}, {}, "original_context_length"),
        (
            {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64},
            {},
            "rope_factors_long.weight is missing",
        ),
        ({"rope.scaling.original_context_length": 64}, {"long_factors": LONG}, "missing: rope_factors_short.weight"),
        ({"rope.scaling.original_context_length": 256}, {"long_factors": LONG}, "rope_factors_short.weight is missing"),
        ({}, {"long_factors": LONG, "short_factors": SHORT}, "original_context_length"),
        ({"rope.scaling.type": "yarn"}, {"long_factors": LONG, "short_factors": SHORT}, "yarn.*only one"),
        ({"rope.scaling.alpha": 0.5}, {}, "rope.scaling.alpha must be at least 1"),
        ({"rope.scaling.type": "linear", "rope.scaling.alpha": 4.0}, {}, "linear.*rope.scaling.alpha.*only one"),
        ({}, {"long_factors": LONG, "short_factors": SHORT, "freq_factors": LONG}, "rope_freqs.weight and rope_factors_long"),
        (LLAMA3, {"freq_factors": LONG}, "llama3, but rope_freqs.weight holds other divisors"),
        ({"rope.scaling.type": "llama3"}, {}, "rope.scaling.factor' is missing"),
        ({**LLAMA3, "rope.scaling.high_freq_factor": 1.0}, {}, "high_freq_factor is 1.0, but must be greater"),
        ({"rope.scaling.original_context_length": 1}, {"long_factors": LONG, "short_factors": SHORT}, "from 2 to"),
    ],
)
def test_what_contradicts_or_is_missing_is_named(
    keys: dict[str, WritableValue], sizes: dict[str, object], message: str, tmp_path: Path
) -> None:  # known fault B92
    with pytest.raises(ModelFileError, match=message):
        rope_of(tmp_path, keys, **sizes)


@pytest.mark.parametrize(
    "factors", [np.ones(7, np.float32), np.zeros(8, np.float32), np.full(8, np.nan, np.float32)]
)
@pytest.mark.parametrize("name", ["rope_freqs.weight", "rope_factors_long.weight"])
def test_bad_rope_factors_are_named(name: str, factors: np.ndarray, tmp_path: Path) -> None:
    tensors: dict[str, WritableTensor | None] = {name: ("F32", factors.shape, factors)}
    with pytest.raises(ModelFileError, match=name):
        rope_of(tmp_path, {"rope.scaling.original_context_length": 64}, tensors)


def test_a_factor_without_a_type_is_linear_and_the_type_none_wins(tmp_path: Path) -> None:
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        rope = rope_of(tmp_path, {key: 4.0})
        assert (rope.scaling, rope.factor) == ("linear", 4.0)
    assert rope_of(tmp_path, {"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}) == rope_of(tmp_path)


def test_dynamic_ntk_changes_nothing_within_the_original_context(tmp_path: Path) -> None:
    """Its frequencies follow the file's context_length, which by default is the original one."""
    keys: dict[str, WritableValue] = {"rope.scaling.type": "dynamic", "rope.scaling.factor": 4.0}
    assert inv_freq(rope_of(tmp_path, keys)) == inv_freq(rope_of(tmp_path))
    stretched = rope_of(tmp_path, keys | {"rope.scaling.original_context_length": 64})  # of 128
    expected = rope_of(tmp_path, {"rope.scaling.alpha": 5.0})  # 4 * 128 / 64 - 3
    assert inv_freq(stretched) == inv_freq(expected)
    base = 10000.0 * 5.0 ** (16 / 14)
    assert inv_freq(expected) == pytest.approx([base ** (-i / 8) for i in range(8)], rel=1e-13)


def test_yarn_with_a_log_multiplier_divides_the_attention_factor(tmp_path: Path) -> None:
    keys: dict[str, WritableValue] = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    plain = rope_of(tmp_path, keys).rope().attention_factor
    divided = rope_of(tmp_path, keys | {"rope.scaling.yarn_log_multiplier": 0.5}).rope().attention_factor
    assert plain == pytest.approx(1 + 0.1 * math.log(4), rel=1e-14)
    assert divided == pytest.approx(plain / (1 + 0.05 * math.log(4)), rel=1e-14)


def test_yarn_without_truncation_moves_the_ramp(tmp_path: Path) -> None:
    keys: dict[str, WritableValue] = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    rounded, exact = (inv_freq(rope_of(tmp_path, keys | {"rope.scaling.yarn_truncate": t})) for t in (True, False))
    assert rounded != exact
    assert inv_freq(rope_of(tmp_path, keys)) == rounded


@pytest.fixture(scope="module")
def longrope_file(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    keys: dict[str, WritableValue] = {"llama.rope.scaling.original_context_length": 64}
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    return GGUFFile.open(write_tiny_model(path, metadata=keys, long_factors=LONG, short_factors=SHORT))


KEYS = (
    "freq_base", "dimension_count", "scale_linear", "scaling.factor", "scaling.original_context_length",
    "scaling.attn_factor", "scaling.alpha", "scaling.yarn_beta_fast", "scaling.yarn_beta_slow",
    "scaling.yarn_log_multiplier", "scaling.low_freq_factor", "scaling.high_freq_factor",
)  # fmt: skip
NUMBERS = st.floats(width=32) | st.integers(-(2**31), 2**31) | st.sampled_from([0.0, 1.0, 2**-126, 3e38])
TYPES = st.sampled_from(["none", "linear", "yarn", "dynamic", "llama3", "longrope", "spiral"])


@settings(max_examples=300, deadline=None)
@given(
    numbers=st.dictionaries(
        st.sampled_from(KEYS),
        NUMBERS,
    ),
    scaling=st.none() | TYPES,
    context_length=st.integers(1, 2**31 - 1),
    tensors=st.booleans(),
)
def test_absurd_values_are_refused_or_give_numbers(
    longrope_file: GGUFFile, numbers: dict[str, MetadataValue], scaling: str | None, context_length: int, tensors: bool
) -> None:
    metadata = {f"llama.rope.{key}": value for key, value in numbers.items()}
    if scaling is not None:
        metadata["llama.rope.scaling.type"] = scaling
    longrope_file.metadata = metadata
    try:
        rope = read_rope(ArchMetadata(longrope_file, "llama"), "half_split", 16, context_length, tensors=tensors).rope()
    except ModelFileError:
        return
    assert np.isfinite(rope.inv_freq).all()
    assert (rope.inv_freq >= 0).all()
    assert np.isfinite(rope.attention_factor)
