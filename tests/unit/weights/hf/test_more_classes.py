"""What is special in folders of GPT-2, StarCoder2, OLMo and GLM-4, beyond what test_folder_equals_gguf.py compares."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import CASES
from hotloop.errors import ModelFileError
from hotloop.models.reference import reference_logits
from hotloop.models.registry import load_model_spec
from hotloop.weights.open_model import open_model
from hotloop.weights.safetensors import SafetensorsFile
from tiny_folders import Stored, stored, write_golden_folder, write_tiny_folder, write_weights
from tiny_models import random_tokens


def test_gpt2_as_it_was_first_published(tmp_path: Path) -> None:
    """Names without "transformer.", masks among the tensors, no n_inner, the context under two names."""
    folder = write_tiny_folder(tmp_path / "f", "gpt2", intermediate_size=256, tied=True)
    with open_model(folder) as model:
        expected = reference_logits(model, random_tokens(5, 24))
    tensors: dict[str, Stored] = {"h.0.attn.bias": stored("F32", np.ones((1, 1, 128, 128)))}
    for name, tensor in SafetensorsFile.open(folder / "model.safetensors").tensors.items():
        tensors[name.removeprefix("transformer.")] = (tensor.dtype, tensor.shape, tensor.read().tobytes())
    write_weights(folder, tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_inner": None}))
    with open_model(folder) as model:
        np.testing.assert_array_equal(reference_logits(model, random_tokens(5, 24)), expected)


def test_matrices_of_gpt2_are_read_in_any_rows(tmp_path: Path) -> None:
    with open_model(write_tiny_folder(tmp_path / "f", "gpt2", dtype="F16")) as model:
        info = model.tensors["blk.0.ffn_up.weight"]
        assert info.shape == (96, 64)
        assert model.location(info.name) is None
        whole = model.read(info.name).reshape(96, 128)
        np.testing.assert_array_equal(model.read_rows(info.name, 5, 90), whole[5:90].reshape(-1))


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("gpt2", {"activation_function": "gelu"}, "activation_function.*gelu"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"n_ctx": 64}, "n_ctx.*128"),
        ("starcoder2", {"use_bias": False}, "use_bias.*contradicts the weights"),
        ("starcoder2", {"hidden_act": "gelu"}, "hidden_act"),
        ("olmo2", {"attention_bias": True}, "attention_bias"),
        ("glm4", {"attention_bias": False}, "attention_bias.*contradicts the weights"),
        ("glm4", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ],
)
def test_what_is_refused(architecture: str, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        open_model(write_tiny_folder(tmp_path / "f", architecture, config=config))


def test_glm4_rotates_half_of_a_head_where_nothing_is_said(tmp_path: Path) -> None:
    stated = open_model(write_tiny_folder(tmp_path / "a", "glm4"))
    silent = open_model(write_tiny_folder(tmp_path / "b", "glm4", config={"partial_rotary_factor": None}))
    assert load_model_spec(silent).config == load_model_spec(stated).config


def test_olmo3_states_the_rope_of_both_kinds_of_layer(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "olmo3")
    old = open_model(write_golden_folder(tmp_path / "old", case))
    sections: dict[str, Any] = {
        "full_attention": {"rope_theta": 10000.0, **case.hf_rope},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    changes = {"rope_theta": None, "rope_scaling": None, "rope_parameters": sections}
    new = open_model(write_golden_folder(tmp_path / "new", case, config=changes))
    assert load_model_spec(new).config == load_model_spec(old).config
    for change in ({"rope_theta": 20000.0}, {"rope_type": "yarn"}):
        sections["sliding_attention"] |= change
        with pytest.raises(ModelFileError, match="sliding_attention"):
            open_model(write_golden_folder(tmp_path / "bad", case, config=changes))
