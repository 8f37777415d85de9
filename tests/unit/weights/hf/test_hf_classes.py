"""What a config.json of each model class becomes, and what of it is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import CASES, GoldenCase
from hotloop.errors import ModelFileError
from hotloop.models.registry import load_model_spec
from hotloop.weights.open_model import open_model
from hotloop.weights.quantized_model import open_quantized
from tiny_folders import write_golden_folder, write_json, write_tiny_folder


def case_of(name: str) -> GoldenCase:
    return next(case for case in CASES if case.name == name)


def metadata_of(path: Path, architecture: str, config: dict[str, Any] | None = None, **sizes: Any) -> dict[str, Any]:
    """Keys below the architecture, without that prefix."""
    with open_model(write_tiny_folder(path / "f", architecture, config=config, **sizes)) as folder:
        load_model_spec(folder)
        prefix = architecture + "."
        return {key.removeprefix(prefix): value for key, value in folder.metadata.items() if key.startswith(prefix)}


def test_granite_multipliers_of_one_are_the_default(tmp_path: Path) -> None:
    """The scale of the scores too, which is not 1 / sqrt(head_dim) then."""
    gone: dict[str, Any] = dict.fromkeys(
        ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    )
    metadata = metadata_of(tmp_path, "granite", gone)
    assert {metadata[k] for k in ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")} == {1.0}


def test_gemma2_caps_and_layers(tmp_path: Path) -> None:
    """Missing caps are those of the class; null, which is no cap, is a 0 in GGUF."""
    metadata = metadata_of(tmp_path, "gemma2", {"attn_logit_softcapping": None, "query_pre_attn_scalar": 144})
    assert (metadata["attn_logit_softcapping"], metadata["final_logit_softcapping"]) == (50.0, 8.0)
    path = tmp_path / "f" / "config.json"
    write_json(path, json.loads(path.read_text()) | {"final_logit_softcapping": None})
    with open_model(tmp_path / "f") as folder:
        assert folder.metadata["gemma2.final_logit_softcapping"] == 0.0
    assert metadata["attention.scale"] == float(np.float32(1 / 12))
    assert "attention.sliding_window_pattern" not in metadata
    types = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    pattern = metadata_of(tmp_path, "gemma2", {"layer_types": types})["attention.sliding_window_pattern"]
    assert pattern.tolist() == [False, True, False, False]


def test_gemma2_of_as_many_layers_as_the_27b(tmp_path: Path) -> None:
    """Its scale is that of its own query_pre_attn_scalar, also where that is the head_dim."""
    with open_model(write_tiny_folder(tmp_path / "f", "gemma2", num_layers=46, head_dim=32)) as model:
        assert load_model_spec(model).config.attention_scale == float(np.float32(32**-0.5))


def test_phi3_stretches_4096_tokens_where_nothing_is_said(tmp_path: Path) -> None:
    scaling = {"rope_type": "longrope", "long_factor": [2.0] * 8, "short_factor": [1.0] * 8}
    with open_model(write_tiny_folder(tmp_path / "f", "phi3", context_length=8192, config={"rope_scaling": scaling})) as model:
        rope = load_model_spec(model).config.layers[0].rope
    assert rope is not None
    assert rope.freq_factors == (2.0,) * 8
    assert rope.attention_factor == pytest.approx(1.04083299973, rel=1e-6)  # as transformers has it


@pytest.mark.parametrize("name", ["phi3-long-gqa-tied", "phi3-short-window"])
def test_phi3_states_rope_in_four_ways(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    inside = dict(case.hf_rope)
    outside = {key: inside.pop(key) for key in ("partial_rotary_factor", "original_max_position_embeddings")}
    del inside["rope_type"]
    forms: list[dict[str, Any]] = [
        {"rope_scaling": inside | {"type": "longrope"}, **outside},
        {"rope_scaling": inside | {"type": "su"}, **outside},
        {"rope_scaling": None, "rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, **case.hf_rope}},
        # As transformers saves the first one again.
        {
            "rope_scaling": None, "rope_theta": None, **outside,
            "rope_parameters": {"type": "longrope", "rope_theta": 10000.0, **case.hf_rope},
        },
    ]  # fmt: skip
    kept = {key: value for key, value in case.hf_config.items() if key != "original_max_position_embeddings"}
    configs = []
    for i, form in enumerate(forms):
        with open_model(write_golden_folder(tmp_path / str(i), case, config=kept | form)) as folder:
            configs.append(load_model_spec(folder).config)
    with open_model(case.write(tmp_path / "m.gguf")) as gguf:
        assert configs == [load_model_spec(gguf).config] * 4


def test_smollm3_states_its_layers_in_two_ways(tmp_path: Path) -> None:
    lists = metadata_of(tmp_path, "smollm3", {"no_rope_layers": [1, 1, 1, 0, 1], "no_rope_layer_interval": None})
    assert lists == metadata_of(tmp_path, "smollm3")


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "granite", "smollm3"])
def test_llama3_rope_in_any_class(architecture: str, tmp_path: Path) -> None:
    """The divisors come along wherever the configuration asks for them."""
    case = case_of("llama-llama3")
    kind = "llama" if architecture == "mistral" else architecture
    classes: dict[str, Any] = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    config = {"rope_scaling": dict(case.hf_rope), **(classes | {"attention_bias": None} if architecture == "mistral" else {})}
    with open_model(write_tiny_folder(tmp_path / "f", kind, config=config)) as folder:
        rope = load_model_spec(folder).config.layers[0].rope
    assert rope is not None
    assert rope.tensors == ("rope_freqs.weight",)
    assert max(rope.freq_factors or ()) == 8.0


FULL, SLIDING = "full_attention", "sliding_attention"
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "attention_bias": None}


@pytest.mark.parametrize(
    ("architecture", "config", "computed"),
    [
        *((name, {}, FULL) for name in ("llama", "qwen2", "qwen3", "granite", "smollm3", "glm4", "olmo2")),
        *((name, {"sliding_window": None}, FULL) for name in ("phi3", "starcoder2")),
        *((name, {"sliding_window": 8}, SLIDING) for name in ("phi3", "starcoder2")),
        ("llama", MISTRAL | {"sliding_window": 8}, SLIDING),
    ],
)
def test_a_list_of_every_layers_attention_may_say_what_the_class_does(
    tmp_path: Path, architecture: str, config: dict[str, Any], computed: str
) -> None:
    plain = metadata_of(tmp_path, architecture, config)
    assert ("attention.sliding_window" in plain and plain["attention.sliding_window"] == 8) is (computed == SLIDING)
    assert metadata_of(tmp_path, architecture, config | {"layer_types": [computed] * 5}) == plain
    other = SLIDING if computed == FULL else FULL
    for stated in ([computed, other], [other] * 5, [computed, "chunked_attention"], [None], computed, {computed: 1}):
        with pytest.raises(ModelFileError, match=f"'layer_types' .* hotloop computes '{computed}' in every layer"):
            metadata_of(tmp_path, architecture, config | {"layer_types": stated})


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("llama", {"is_causal": False}, "'is_causal' .False. is not implemented"),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}, "'no_rope_layers' .* is not implemented"),
        ("smollm3", {"no_rope_layer_interval": 2}, "'no_rope_layer_interval' .* computes 4 only"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, "'use_sliding_window'"),
        ("smollm3", {"mlp_bias": True}, "'mlp_bias'"),
        ("granite", {"mlp_bias": True}, "'mlp_bias'"),
        ("granite", {"logits_scaling": 0.0}, "logit_scale must be greater than 0"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' .* greater than 0"),
        ("gemma2", {"use_bidirectional_attention": True}, "'use_bidirectional_attention'"),
        ("gemma2", {"hidden_activation": "relu"}, "'hidden_activation'"),
        ("gemma2", {"rope_scaling": {"rope_type": "llama3"}}, "'rope_type' .* gemma2"),
        ("gemma3", {"rope_scaling": {"rope_type": "longrope"}}, "'rope_type' .* gemma3"),
        ("gemma2", {"layer_types": ["sliding_attention"]}, "'layer_types' .* list of 4"),
        ("phi3", {"full_attn_mod": 2}, "'full_attn_mod'"),
        ("phi3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'rope_type' .'yarn'. is not implemented for phi3"),
        ("phi3", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "'rope_type' .'linear'. is not implemented"),
        ("phi3", {"lm_head_bias": True}, "'lm_head_bias'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.7}, "head_dim": 16}, "must be even"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "'attn_logit_softcapping' .0.0. must be greater than 0, or null"),
        ("gemma3", {"final_logit_softcapping": -1.0}, "'final_logit_softcapping' .-1.0. must be greater than 0, or null"),
    ],
)
def test_what_is_refused(architecture: str, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        metadata_of(tmp_path, architecture, config)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2", "granite", "olmo2", "starcoder2", "smollm3"])
def test_heads_rotate_in_part_only_where_transformers_lets_them(architecture: str, tmp_path: Path) -> None:
    for config in ({"partial_rotary_factor": 0.5}, {"rope_scaling": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(ModelFileError, match=r"'partial_rotary_factor' \(0.5\) is not implemented"):
            metadata_of(tmp_path, architecture, config)
    assert metadata_of(tmp_path, architecture, {"partial_rotary_factor": 1.0}) == metadata_of(tmp_path, architecture)


@pytest.mark.parametrize(("architecture", "window"), [("gemma3", 16), ("olmo2", 8)])
def test_parameters_of_all_layers_in_a_class_whose_layers_differ(architecture: str, window: int, tmp_path: Path) -> None:
    """transformers reads defaults there; of a kind of layer that is not mentioned too."""
    flat: dict[str, Any] = {"rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(ModelFileError, match=r"'rope_parameters' .* must be by the type of layer"):
        metadata_of(tmp_path, architecture, flat, window=window)
    plain = metadata_of(tmp_path, architecture, window=window)
    for section in ({}, {"full_attention": {"rope_type": "default"}}, {"sliding_attention": {"rope_type": "default"}}):
        read = metadata_of(tmp_path, architecture, {"rope_scaling": None, "rope_parameters": section}, window=window)
        assert read.keys() == plain.keys()
        assert all(np.array_equal(read[key], plain[key]) for key in plain)


@pytest.mark.parametrize(
    ("architecture", "config", "sizes", "message"),
    [
        ("llama", {"rms_norm_eps": 0.0}, {}, r"layer_norm_rms_epsilon must be .* 0.0 \(rms_norm_eps in config.json\)"),
        ("llama", {}, {"head_dim": 24}, r"key_length .* is 24; .* \(head_dim in config.json\)"),
        ("gpt2", {}, {"num_heads": 8, "num_kv_heads": 8, "head_dim": 8}, r"key_length .* is 8; .* \(n_embd in config.json\)"),
        ("gpt2", {"layer_norm_epsilon": 0}, {}, r"must be greater than 0, .* \(layer_norm_epsilon in config.json\)"),
        ("starcoder2", {"norm_epsilon": 0}, {}, r"must be greater than 0, .* \(norm_epsilon in config.json\)"),
        ("gemma3", {"rope_local_base_freq": 1.0}, {}, r"must be greater than 1, .* \(rope_local_base_freq in config.json\)"),
        ("granite", {"residual_multiplier": 0}, {}, r"must be greater than 0, .* \(residual_multiplier in config.json\)"),
    ],
)
def test_a_value_that_the_model_refuses_is_named_as_the_folder_names_it(
    architecture: str, config: dict[str, Any], sizes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=message):
        metadata_of(tmp_path, architecture, config, **sizes)
    with (
        open_quantized(tmp_path / "f", "q8_0") as quantized,
        pytest.raises(ModelFileError, match=message),
    ):
        load_model_spec(quantized)
