"""What load_model_spec refuses, and what it says."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from hotloop.errors import ModelFileError
from hotloop.models.reference import reference_logits
from hotloop.models.registry import ARCHITECTURES, Model, load_model_spec
from hotloop.quant.formats import WEIGHT_FORMATS
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import WritableTensor, WritableValue
from tiny_models import every_format_of_some, random_tokens, write_tiny_model


def load(path: Path) -> Model:
    with GGUFFile.open(path) as gguf:
        return load_model_spec(gguf)


def load_with(
    tmp_path: Path,
    architecture: str = "llama",
    metadata: dict[str, WritableValue | None] | None = None,
    tensors: dict[str, WritableTensor | None] | None = None,
) -> Model:
    return load(write_tiny_model(tmp_path / "m.gguf", architecture, metadata=metadata, tensors=tensors))


def f32(*shape: int) -> WritableTensor:
    return ("F32", shape, np.ones(shape, np.float32))


def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"'mamba'.*{', '.join(sorted(ARCHITECTURES))}"):
        load_with(tmp_path, metadata={"general.architecture": "mamba"})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_missing_tensors_are_in_one_error(architecture: str, tmp_path: Path) -> None:  # known fault B89
    gone: dict[str, WritableTensor | None] = {
        "token_embd.weight": None,
        "blk.0.attn_output.weight": None,
        "blk.1.ffn_down.weight": None,
    }
    with pytest.raises(ModelFileError, match="3 tensors") as error:
        load_with(tmp_path, architecture, tensors=gone)
    assert all(name in str(error.value) for name in gone)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("qwen2", "blk.1.attn_k.bias"),
        ("qwen3", "blk.1.attn_q_norm.weight"),
        ("gemma3", "blk.3.post_ffw_norm.weight"),
        ("gemma2", "blk.1.post_attention_norm.weight"),
        ("phi3", "blk.1.attn_qkv.weight"),
        ("gpt2", "position_embd.weight"),
        ("gpt2", "blk.1.attn_qkv.bias"),
        ("starcoder2", "blk.1.ffn_norm.bias"),
        ("starcoder2", "blk.0.ffn_up.bias"),
        ("olmo2", "blk.0.attn_k_norm.weight"),
        ("glm4", "blk.1.post_attention_norm.weight"),
    ],
)
def test_what_makes_an_architecture_is_required(architecture: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"missing: {name}"):
        load_with(tmp_path, architecture, tensors={name: None})


def test_half_of_the_optional_biases_is_an_error(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", qkv_bias=True, tensors={"blk.1.attn_v.bias": None})
    with pytest.raises(ModelFileError, match=r"missing: blk\.1\.attn_v\.bias"):
        load(path)


def test_wrong_shapes_are_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"blk\.1\.ffn_up\.weight is \[96, 32\].*\[96, 64\]"):
        load_with(tmp_path, tensors={"blk.1.ffn_up.weight": f32(96, 32)})


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.ffn_up.bias",
        "blk.2.attn_norm.weight",
        "output.bias",
        "rope_factors_wide.weight",
        "token_embd_norm.weight",
    ],
)
def test_a_tensor_of_the_model_that_is_not_implemented_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"may change the result: {name}"):
        load_with(tmp_path, tensors={name: f32(64)})


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize("name", ["rope_freqs.weight", "rope_factors_long.weight"])
def test_rope_factors_are_an_error_where_no_one_says_what_they_mean(architecture: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=name):
        load_with(tmp_path, architecture, tensors={name: f32(8)})


def test_an_unrelated_tensor_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # known fault B89
    with caplog.at_level(logging.WARNING):
        load_with(tmp_path, tensors={"v.patch_embd.weight": f32(8, 8)})
    assert "v.patch_embd.weight" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", 8),
        ("llama.attention.clamp_kqv", 8.0),
        ("llama.logit_scale", 0.5),
        ("llama.final_logit_softcapping", 30.0),
        ("llama.rope.scaling.yarn_ext_factor", 0.5),
        ("llama.attention.temperature_scale", 0.1),
        ("llama.something.new", "on"),
    ],
)
def test_a_key_that_is_not_implemented_is_an_error(key: str, value: WritableValue, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"{key} = {value!r}"):
        load_with(tmp_path, metadata={key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", 0),
        ("llama.attention.causal", True),
        ("llama.logit_scale", 1.0),
        ("llama.vocab_size", 300),
        ("llama.rope.scaling.finetuned", True),
        ("llama.rope.dimension_count", 16),
        ("qwen2.expert_count", 60),
        ("general.quantization_version", 2),
    ],
)
def test_a_key_that_changes_nothing_is_fine(key: str, value: WritableValue, tmp_path: Path) -> None:
    assert load_with(tmp_path, metadata={key: value}) == load_with(tmp_path)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "glm4", "gpt2"])
def test_no_window_may_be_said_of_an_architecture_without_windows(architecture: str, tmp_path: Path) -> None:
    key = f"{architecture}.attention.sliding_window"
    assert load_with(tmp_path, architecture, metadata={key: 0}) == load_with(tmp_path, architecture)
    with pytest.raises(ModelFileError, match=f"{key} = 8"):
        load_with(tmp_path, architecture, metadata={key: 8})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", None, "block_count"),
        ("llama.block_count", 0, "from 1 to"),
        ("llama.block_count", 1 << 30, "the file has .* tensors"),
        ("llama.embedding_length", "64", "must be an integer"),
        ("llama.attention.head_count_kv", 3, "does not divide 4"),
        ("llama.attention.value_length", 8, "must equal the key length 16"),
        ("llama.attention.key_length", 24, "is 24; attention kernels need a multiple of 16"),
        ("llama.attention.key_length", 1 << 30, "is 1073741824; attention kernels need a multiple of 16, 16384 at most"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "greater than 0"),
        ("llama.rope.dimension_count", 15, "must be even"),
        ("llama.rope.dimension_count", 18, "at most the head_dim 16"),
        ("llama.rope.freq_base", 1.0, "greater than 1"),
        ("llama.rope.scaling.factor", 0.0, "greater than 0"),
        ("llama.rope.scaling.type", "spiral", "'spiral'; hotloop implements none, linear, yarn, dynamic, llama3, longrope"),
    ],
)
def test_a_bad_value_is_named(
    key: str, value: WritableValue | None, message: str, tmp_path: Path
) -> None:  # known fault B92
    with pytest.raises(ModelFileError, match=message) as error:
        load_with(tmp_path, metadata={key: value})
    assert key in str(error.value)


def test_gemma3_needs_its_rope_base(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gemma3\.rope\.freq_base"):
        load_with(tmp_path, "gemma3", metadata={"gemma3.rope.freq_base": None})


def test_gemma3_with_a_vision_tower_loads_as_text(tmp_path: Path) -> None:
    assert load_with(tmp_path, "gemma3", metadata={"gemma3.vision.block_count": 27}).config.num_layers == 7


@pytest.mark.parametrize(("architecture", "id", "formats"), every_format_of_some())
def test_formats_may_differ_per_tensor(
    architecture: str, id: str, formats: object, tmp_path: Path
) -> None:  # known fault B120
    path = write_tiny_model(tmp_path / "m.gguf", architecture, formats=formats)
    logits = reference_logits(path, random_tokens(0, 5))
    assert np.isfinite(logits).all()
    assert 0.5 < logits.std() < 5


def test_unsupported_formats_are_named_with_the_supported_ones(tmp_path: Path) -> None:  # known fault B120
    for name in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ2_0"):
        odd = (name, (64, 256), np.zeros(64 * WEIGHT_FORMATS[name].superblock_bytes, np.uint8))
        with pytest.raises(ModelFileError, match=rf"blk\.1\.ffn_down\.weight is {name} \(supported: F32, .*MXFP4\)"):
            load(write_tiny_model(tmp_path / "m.gguf", tensors={"blk.1.ffn_down.weight": odd}, intermediate_size=256))
    with pytest.raises(ModelFileError, match=r"output_norm\.weight is Q8_0 \(supported: F32, F16, BF16\)"):
        load_with(tmp_path, tensors={"output_norm.weight": ("Q8_0", (64,), np.zeros(68, np.uint8))})


def test_a_row_length_that_kernels_cannot_take_is_named(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", intermediate_size=100)
    with pytest.raises(ModelFileError, match=r"ffn_down\.weight.*100.*multiple of 32"):
        load(path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "granite", "phi3", "smollm3"])
def test_rope_factors_divide_the_frequencies(architecture: str, tmp_path: Path) -> None:  # known fault B89
    tokens = random_tokens(3, 24)

    def logits(name: str, **arguments: object) -> np.ndarray:
        return reference_logits(write_tiny_model(tmp_path / name, architecture, **arguments), tokens)

    pairs = 16 if architecture == "qwen3" else 8
    plain = logits("plain.gguf")
    np.testing.assert_array_equal(logits("ones.gguf", freq_factors=(1.0,) * pairs), plain)
    linear: dict[str, WritableValue] = {
        f"{architecture}.rope.scaling.type": "linear",
        f"{architecture}.rope.scaling.factor": 2.0,
    }
    halved = logits("twos.gguf", freq_factors=(2.0,) * pairs)
    np.testing.assert_array_equal(halved, logits("linear.gguf", metadata=linear))
    assert np.abs(halved - plain).max() > 0.1
