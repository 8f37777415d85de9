"""Rope parameters of a config.json: Llama 3's divisors as the converter has them, YaRN's factors, and what is refused."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.rope import llama3_divisors, rope_metadata, rope_section, rope_tensors, rotated

LLAMA32 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


LONGROPE: dict[str, Any] = {
    "type": "longrope", "long_factor": [1.0 + i / 7 for i in range(32)], "short_factor": [1] * 32,
}  # fmt: skip


def config_of(scaling: dict[str, Any] | None, **keys: Any) -> HFConfig:
    keys = {"rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling": scaling} | keys
    return HFConfig(keys, "config.json")


def metadata_of(scaling: dict[str, Any] | None, **keys: Any) -> dict[str, Any]:
    config = config_of(scaling, **keys)
    return rope_metadata(config, rope_section(config))


def tensors_of(scaling: dict[str, Any] | None) -> Mapping[str, NDArray[np.float32]]:
    config = config_of(scaling)
    section = rope_section(config)
    return rope_tensors(config, section, lambda: rotated(config, section, 64))


def test_llama3_divisors_are_the_converters() -> None:
    """Of Llama 3.2 1B (head_dim 64), computed by llama.cpp's converter (11434) with torch."""
    blend = [float.fromhex(text) for text in ("0x1.a6bd84p+0", "0x1.a568dep+1", "0x1.3555dcp+3")]
    config = config_of(LLAMA32)
    divisors = llama3_divisors(config, rope_section(config), 64)["rope_freqs.weight"]
    assert (divisors == tensors_of(LLAMA32)["rope_freqs.weight"]).all()
    np.testing.assert_array_equal(divisors, np.array([1.0] * 15 + blend + [32.0] * 14, np.float32))
    assert metadata_of(LLAMA32) == {"rope.freq_base": 500000.0}


def test_longrope() -> None:
    """Phi-3.5's context: the attention factor is the converter's, from the ratio of the two lengths."""
    usual = math.sqrt(1 + math.log(32) / math.log(4096))
    for name in ("longrope", "su", "yarn"):
        for place in ({}, {"original_max_position_embeddings": 4096}):  # beside the section, or in it
            inside = LONGROPE | {"type": name, "original_max_position_embeddings": None if place else 4096}
            metadata = metadata_of(inside, **place)
            assert metadata["rope.scaling.type"] == "longrope"
            assert metadata["rope.scaling.original_context_length"] == 4096
            assert math.isclose(metadata["rope.scaling.attn_factor"], usual, rel_tol=1e-7)
    assert metadata_of(LONGROPE | {"attention_factor": 1.19})["rope.scaling.attn_factor"] == float(np.float32(1.19))
    stretched = metadata_of(LONGROPE | {"factor": 4.0, "original_max_position_embeddings": 4096})
    assert math.isclose(stretched["rope.scaling.attn_factor"], math.sqrt(1 + math.log(4) / math.log(4096)), rel_tol=1e-7)
    tensors = tensors_of(LONGROPE)
    assert tensors.keys() == {"rope_factors_long.weight", "rope_factors_short.weight"}
    np.testing.assert_array_equal(tensors["rope_factors_long.weight"], np.array(LONGROPE["long_factor"], np.float32))
    assert tensors_of(None) == {}


def test_heads_that_rotate_in_part() -> None:
    for keys in ({"partial_rotary_factor": 0.75}, {"rope_parameters": {"partial_rotary_factor": 0.75}}):
        config = config_of(None, **keys)
        assert rotated(config, rope_section(config), 128) == 96
    both = config_of(None, partial_rotary_factor=0.75, rope_parameters={"partial_rotary_factor": 0.75})
    assert rotated(both, rope_section(both), 128) == 96
    both.check_all_used(("rope_theta", "max_position_embeddings"))
    both = config_of(None, partial_rotary_factor=0.5, rope_parameters={"partial_rotary_factor": 0.75})
    with pytest.raises(ModelFileError, match=r"'partial_rotary_factor' \(0.5\) contradicts the 0.75 of rope_parameters"):
        rotated(both, rope_section(both), 128)
    config = config_of(None)
    assert rotated(config, rope_section(config), 128) == 128


def test_no_scaling() -> None:
    for scaling in (None, {}, {"rope_type": "default"}, {"type": "default"}):
        assert metadata_of(scaling) == {"rope.freq_base": 500000.0}


def test_the_old_name_of_the_type_beside_the_new_one() -> None:
    """What transformers saves of a folder with the old name."""
    for old, new in (("linear", "linear"), ("su", "longrope"), ("yarn", "longrope")):
        scaling = (LONGROPE if new == "longrope" else {"factor": 8.0}) | {"type": old}
        assert metadata_of(scaling | {"rope_type": new}) == metadata_of(scaling)


def test_linear() -> None:
    for name, factor in (("type", "factor"), ("rope_type", "factor"), ("type", "scaling_factor")):
        metadata = metadata_of({name: "linear", factor: 8.0})
        assert metadata == {"rope.freq_base": 500000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}


def test_yarn() -> None:
    base: dict[str, Any] = {"type": "yarn", "factor": 4.0}
    assert metadata_of(base | {"factor": None, "original_max_position_embeddings": 32768})["rope.scaling.factor"] == 4.0
    assert metadata_of(base)["rope.scaling.original_context_length"] == 131072
    given = metadata_of(base | {"original_max_position_embeddings": 32768, "beta_fast": 24, "beta_slow": 2})
    assert given == {
        "rope.freq_base": 500000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32768, "rope.scaling.yarn_beta_fast": 24.0,
        "rope.scaling.yarn_beta_slow": 2.0,
    }  # fmt: skip
    usual = 0.1 * math.log(4) + 1
    # The key multiplies the usual factor; the configuration states the product.
    stated = metadata_of(base | {"attention_factor": 1.0})["rope.scaling.attn_factor"]
    assert math.isclose(stated * usual, 1.0, rel_tol=1e-7)
    assert metadata_of(base | {"mscale": 1.0, "mscale_all_dim": 0.5})["rope.scaling.yarn_log_multiplier"] == 0.5
    assert metadata_of(base | {"truncate": False})["rope.scaling.yarn_truncate"] is False


def test_dynamic_scales_only_beyond_the_stated_context() -> None:
    assert metadata_of({"type": "dynamic", "factor": 2.0}) == {"rope.freq_base": 500000.0}


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "spiral", "factor": 2.0}, r"rope_scaling: 'rope_type' .* is not implemented here"),
        (LONGROPE | {"long_factor": [1.0] * 31}, r"'long_factor' .* must be a list of 32 finite numbers"),
        (LONGROPE | {"short_factor": None}, r"'short_factor' \(missing\) must be a list of 32 finite numbers"),
        (LONGROPE | {"attention_factor": "high"}, r"'attention_factor' \('high'\) must be a finite number"),
        (LONGROPE | {"partial_rotary_factor": 1.5}, r"'partial_rotary_factor' \(1.5\) must be greater than 0 and at most 1"),
        ({"type": "linear", "factor": 4.0, "scaling_factor": 2.0}, "'scaling_factor' .* contradicts the factor 4"),
        ({"type": "dynamic"}, r"'factor' \(missing\)"),
        ({"rope_type": 3}, "must be a text"),
        ({"rope_type": "default", "type": "linear", "factor": 4.0}, "'type' .* contradicts the rope_type 'default'"),
        (LONGROPE | {"partial_rotary_factor": 0.55}, "lets 35 of the 64 elements .* must be even"),
        (LONGROPE | {"partial_rotary_factor": 0.01}, "lets 0 of the 64 elements .* must be even"),
        ({"rope_type": "linear"}, r"'factor' \(missing\) must be a finite number"),
        ({"rope_type": "linear", "factor": "4"}, r"'factor' \('4'\) must be a finite number"),
        ({"rope_type": "linear", "factor": 1e39}, "must be a finite number"),
        ({"rope_type": "yarn", "factor": 0.5}, "must be at least 1"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 0}, r"'truncate' \(0\) must be true or false"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": 0.5, "mscale_all_dim": 1.0}, r"'mscale' \(0.5\) is not implemented"),
        ({"rope_type": "linear", "factor": 4.0, "novel_twist": 0.5}, "'novel_twist' = 0.5"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
        (LLAMA32 | {"high_freq_factor": 1.0}, "less than high_freq_factor"),
        (7, r"'rope_scaling' \(7\) must be an object"),
    ],
)
def test_what_is_refused(scaling: Any, message: str) -> None:
    def read() -> None:
        tensors_of(scaling)
        metadata_of(scaling)

    with pytest.raises(ModelFileError, match=message):
        read()


def test_two_bases_that_contradict_each_other() -> None:
    keys = {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    with pytest.raises(ModelFileError, match="contradicts the 500000 of rope_parameters"):
        metadata_of(None, **keys)
