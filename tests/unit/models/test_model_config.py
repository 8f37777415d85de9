"""Configurations read from metadata, and the KV groups they lead to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotloop.errors import ModelFileError
from hotloop.models import gemma2, gemma3
from hotloop.models.config import ModelConfig, kv_groups
from hotloop.models.metadata import ArchMetadata
from hotloop.models.registry import load_model_spec
from hotloop.models.rope import RopeConfig
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import WritableValue
from tiny_models import ARCHITECTURES, write_tiny_model


def config_of(
    tmp_path: Path,
    architecture: str,
    metadata: dict[str, WritableValue | None] | None = None,
    **sizes: object,
) -> ModelConfig:
    path = write_tiny_model(tmp_path / "m.gguf", architecture, metadata=metadata, **sizes)
    with GGUFFile.open(path) as gguf:
        return load_model_spec(gguf).config


def rope_of(config: ModelConfig, layer: int = 0) -> RopeConfig:
    rope = config.layers[layer].rope
    assert rope is not None
    return rope


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "granite", "phi3"])
def test_one_kv_group_where_all_layers_see_everything(architecture: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, architecture)
    (group,) = kv_groups(config)
    assert (group.layers, group.window) == ((0, 1), None)
    assert (group.num_kv_heads, group.head_dim) == (config.num_kv_heads, config.head_dim)


def test_gemma3_has_a_sliding_group_first_and_a_full_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", num_layers=12)
    sliding, full = kv_groups(config)
    assert (sliding.layers, sliding.window) == ((0, 1, 2, 3, 4, 6, 7, 8, 9, 10), 16)
    assert (full.layers, full.window) == ((5, 11), None)
    assert {rope_of(config, i).base for i in sliding.layers} == {10000.0}
    assert {rope_of(config, i).base for i in full.layers} == {1e6}


def test_gemma3_constants(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3")
    assert config.embedding_scale == 8.0
    assert config.attention_scale == 0.25
    assert config.final_softcap == 0.0
    assert config_of(tmp_path, "gemma3", hidden_size=96).embedding_scale == float(np.sqrt(np.float32(96)))
    assert config_of(tmp_path, "gemma3", {"gemma3.final_logit_softcapping": 30.0}).final_softcap == 30.0


def test_gemma3_27b_scales_by_hidden_size_per_head(tmp_path: Path) -> None:
    # 5376 / 32 heads = 168, while head_dim is 128. Only the metadata are as large as that.
    sizes: dict[str, WritableValue | None] = {
        "gemma3.embedding_length": 5376,
        "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16,
        "gemma3.attention.key_length": 128,
        "gemma3.attention.value_length": 128,
        "gemma3.block_count": 62,
    }
    path = write_tiny_model(tmp_path / "m.gguf", "gemma3", metadata=sizes)
    with GGUFFile.open(path) as gguf:
        config = gemma3.read_config(ArchMetadata(gguf, "gemma3"))
    assert config.attention_scale == pytest.approx(168**-0.5, rel=1e-7)


@pytest.mark.parametrize(
    ("pattern", "full_layers"),
    [
        (2, (1, 3, 5)),
        (np.array([True, True, False, True, False, False, True]), (2, 4, 5)),
    ],
)
def test_gemma3_pattern_from_metadata(
    pattern: WritableValue, full_layers: tuple[int, ...], tmp_path: Path
) -> None:
    config = config_of(tmp_path, "gemma3", {"gemma3.attention.sliding_window_pattern": pattern})
    full = tuple(i for i, layer in enumerate(config.layers) if layer.window is None)
    assert full == full_layers


def test_gemma3_without_a_window_is_all_full_attention(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", window=None)
    (group,) = kv_groups(config)
    assert group.window is None
    assert rope_of(config).base == 1e6


@pytest.mark.parametrize("key", ["rope.freq_base_swa", "rope.local.freq_base"])
def test_gemma3_local_rope_base_from_metadata(key: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", {f"gemma3.{key}": 20000.0})
    assert rope_of(config).base == 20000.0


def test_gemma3_scales_the_rope_of_full_layers_only(tmp_path: Path) -> None:
    scaling: dict[str, WritableValue | None] = {
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }
    config = config_of(tmp_path, "gemma3", scaling)
    assert rope_of(config).factor == 1.0
    assert rope_of(config, 5).factor == 8.0


def test_rotated_pairs_are_adjacent_in_few_files(tmp_path: Path) -> None:  # known fault B90
    """Converters permute q and k of llama and its relatives; GLM-4 is made like this; GPT-2 rotates nothing."""
    rotating = [a for a in ARCHITECTURES if a != "gpt2"]
    adjacent = {a for a in rotating if rope_of(config_of(tmp_path, a)).style == "interleaved"}
    assert adjacent == {"llama", "granite", "smollm3", "glm4"}


def test_a_missing_output_matrix_means_tied_embeddings(tmp_path: Path) -> None:
    assert not config_of(tmp_path, "llama").tied_embeddings
    assert config_of(tmp_path, "llama", tied=True).tied_embeddings


def test_defaults_of_missing_keys(tmp_path: Path) -> None:
    gone: dict[str, WritableValue | None] = {
        "llama.attention.key_length": None,
        "llama.attention.value_length": None,
        "llama.attention.head_count_kv": None,
        "llama.rope.freq_base": None,
    }
    config = config_of(tmp_path, "llama", gone, num_kv_heads=4)
    assert (config.head_dim, config.num_kv_heads) == (16, 4)
    assert rope_of(config).base == 10000.0
    assert config.attention_scale == 0.25


def test_gemma2_slides_in_every_other_layer(tmp_path: Path) -> None:
    sliding, full = kv_groups(config_of(tmp_path, "gemma2"))
    assert (sliding.layers, sliding.window) == ((0, 2), 16)
    assert (full.layers, full.window) == ((1, 3), None)


def test_gemma2_constants(tmp_path: Path) -> None:
    """The first files state neither caps nor window: they are those of all Gemma 2 models."""
    gone: dict[str, WritableValue | None] = {
        "gemma2.attn_logit_softcapping": None,
        "gemma2.final_logit_softcapping": None,
        "gemma2.attention.sliding_window": None,
    }
    config = config_of(tmp_path, "gemma2", gone)
    assert (config.attention_softcap, config.final_softcap, config.layers[0].window) == (50.0, 30.0, 4096)
    assert (config.embedding_scale, config.attention_scale) == (8.0, 0.25)


def test_gemma2_27b_scales_by_hidden_size_per_head(tmp_path: Path) -> None:
    # 4608 / 32 heads = 144, while head_dim is 128. Only the metadata are as large as that.
    sizes: dict[str, WritableValue | None] = {
        "gemma2.embedding_length": 4608,
        "gemma2.attention.head_count": 32,
        "gemma2.attention.head_count_kv": 16,
        "gemma2.attention.key_length": 128,
        "gemma2.attention.value_length": 128,
        "gemma2.block_count": 46,
    }
    path = write_tiny_model(tmp_path / "m.gguf", "gemma2", metadata=sizes)
    with GGUFFile.open(path) as gguf:
        config = gemma2.read_config(ArchMetadata(gguf, "gemma2"))
    assert config.attention_scale == pytest.approx(1 / 12, rel=1e-7)


def test_granite_multipliers(tmp_path: Path) -> None:
    config = config_of(tmp_path, "granite")
    assert (config.embedding_scale, config.residual_scale, config.attention_scale) == (1.5, 0.625, 0.375)
    assert config.logits_scale == float(np.float32(1 / 1.25))
    only_one_is_required: dict[str, WritableValue | None] = {
        "granite.embedding_scale": None,
        "granite.residual_scale": None,
        "granite.attention.scale": None,
        "granite.logit_scale": 1.0,
    }
    config = config_of(tmp_path, "granite", only_one_is_required)
    assert (config.embedding_scale, config.residual_scale, config.attention_scale) == (1.0, 1.0, 0.25)
    assert config.logits_scale == 1.0
    with pytest.raises(ModelFileError, match="logit_scale"):
        config_of(tmp_path, "granite", {"granite.logit_scale": None})


def test_granite_without_positions(tmp_path: Path) -> None:
    config = config_of(tmp_path, "granite", {"granite.rope.scaling.finetuned": False})
    assert {layer.rope for layer in config.layers} == {None}
    assert rope_of(config_of(tmp_path, "granite", {"granite.rope.scaling.finetuned": True})).base == 10000.0


def test_smollm3_does_not_encode_positions_in_every_fourth_layer(tmp_path: Path) -> None:
    config = config_of(tmp_path, "smollm3", num_layers=9)
    assert [i for i, layer in enumerate(config.layers) if layer.rope is None] == [3, 7]
    (group,) = kv_groups(config)
    assert group.layers == tuple(range(9))


@pytest.mark.parametrize("architecture", ["llama", "granite", "smollm3", "phi3"])
def test_a_window_is_every_layers_and_0_is_none(architecture: str, tmp_path: Path) -> None:
    (group,) = kv_groups(config_of(tmp_path, architecture, window=24))
    assert group.window == 24
    assert config_of(tmp_path, architecture, window=0) == config_of(tmp_path, architecture)
