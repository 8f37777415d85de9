"""Everything that can be wrong with a folder is an error that names it (known faults B90, B91, and their like)."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.models.registry import load_model_spec
from hotloop.quant.formats import dequantize
from hotloop.weights.hf.shards import INDEX
from hotloop.weights.model_file import ModelFile
from hotloop.weights.open_model import open_model
from open_files import no_file_left_open
from tiny_folders import stored, write_json, write_raw_safetensors, write_safetensors, write_tiny_folder

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1e-40, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def load(path: Path) -> ModelFile:
    """Opened and checked, as every command does."""
    model_file = open_model(path)
    load_model_spec(model_file)
    return model_file


def refused(path: Path, message: str, kind: type[Exception] = ModelFileError) -> None:
    with pytest.raises(kind, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; hotloop reads folders of .*gemma3, gemma3_text"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"model_type": ["llama"]}, "model_type .'llama'. is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "of llama models hotloop runs LlamaForCausalLM"),
        ({"mlp_bias": True}, "'mlp_bias' .True. is not implemented; hotloop computes False only"),
        ({"hidden_act": "relu"}, "'hidden_act' .'relu'. is not implemented"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rope_type.* is not implemented"),
        ({"num_experts": 8}, "'num_experts' = 8"),
        ({"attn_multiplier": 0.5, "res_multiplier": 0.1}, "'attn_multiplier' = 0.5, 'res_multiplier' = 0.1"),
        ({"hidden_size": "64"}, "'hidden_size' .'64'. must be an integer"),
        ({"hidden_size": 64.0}, "'hidden_size' .64.0. must be an integer"),
        ({"hidden_size": True}, "'hidden_size' .True. must be an integer"),
        ({"num_hidden_layers": 10**30}, "'num_hidden_layers' .1000.* must be an integer"),
        ({"num_hidden_layers": 9_000}, "block_count is 9000, but the file has"),
        ({"num_hidden_layers": 2**31 - 1}, "'num_hidden_layers' .2147483647. must be an integer from 1 to 10000"),
        ({"head_dim": 2**30}, "'head_dim' .1073741824. must be an integer from 1 to 16384"),
        ({"num_attention_heads": 3, "head_dim": None, "num_key_value_heads": 3}, "must be a multiple of 3 heads"),
        ({"num_attention_heads": 8}, "has 64 rows|wrong shape"),
        ({"num_key_value_heads": 3}, "rows, which are not 3 heads of an even size"),
        ({"rms_norm_eps": "nan"}, "'rms_norm_eps' .'nan'. must be a finite number"),
        ({"rope_theta": 0}, "'rope_theta' .0. must be greater than 0"),
        ({"rope_theta": -3.0, "rope_scaling": LLAMA3}, "'rope_theta' .-3.0. must be greater than 0"),
        ({"rope_scaling": LLAMA3 | {"rope_theta": 0}, "rope_theta": None}, "rope_scaling: 'rope_theta' .0. must be greater"),
        ({"rope_theta": 1e-45, "rope_scaling": LLAMA3}, "must be greater than 1"),
        ({"partial_rotary_factor": 2.5}, "'partial_rotary_factor' .2.5. must be greater than 0 and at most 1"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' .1. must be true or false"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
    ],
)
def test_a_configuration_that_is_not_implemented(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    refused(write_tiny_folder(tmp_path / "f", config=config), message)


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, "'use_sliding_window' .True."),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "'layer_types'"),
        ("qwen3", {"attention_bias": True}, "'attention_bias' .True."),
        ("gemma3", {"layer_types": ["full_attention"]}, "must be a list of 7"),
        ("gemma3", {"layer_types": ["chunked_attention"] * 7}, "must be a list of 7"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' .50.0."),
        ("gemma3", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' .True."),
        ("gemma3", {"hidden_activation": "gelu"}, "'hidden_activation' .'gelu'."),
        ("gemma3", {"query_pre_attn_scalar": -1}, "must be greater than 0"),
    ],
)
def test_what_other_classes_do_not_have(tmp_path: Path, architecture: str, config: dict[str, Any], message: str) -> None:
    refused(write_tiny_folder(tmp_path / "f", architecture, config=config), message)


@pytest.mark.parametrize("divisor", [10**400, 1e300, float("nan")])
def test_a_divisor_beyond_float32(tmp_path: Path, divisor: float) -> None:
    rope = {"rope_type": "longrope", "long_factor": [divisor] * 8, "short_factor": [1.0] * 8}
    refused(write_tiny_folder(tmp_path / "f", "phi3", config={"rope_scaling": rope}), "'long_factor' .* 8 finite numbers")


def test_biases_that_the_configuration_does_not_have_and_the_other_way_round(tmp_path: Path) -> None:
    refused(write_tiny_folder(tmp_path / "a", config={"attention_bias": True}), r"'attention_bias' .True. .* are missing")
    for window in (None, 8):  # a Mistral model has no such key, and no biases
        path = write_tiny_folder(tmp_path / f"b{window}", qkv_bias=True, config={"attention_bias": False}, window=window)
        refused(path, r"'attention_bias' .False. contradicts the weights: .* are there")


def test_what_says_nothing_is_no_fault(tmp_path: Path) -> None:
    config = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
    load(write_tiny_folder(tmp_path / "q", "qwen2", config=config | {"layer_types": ["full_attention"] * 2}))
    config = {"pretraining_tp": 1, "moe": None, "auto_map": {"x": "y"}, "_name_or_path": "z", "rope_interleaved": False}
    load(write_tiny_folder(tmp_path / "l", config=config))
    tensors = {"model.layers.0.self_attn.rotary_emb.inv_freq": stored("F32", np.ones(8))}
    load(write_tiny_folder(tmp_path / "r", tensors=tensors))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "must hold a JSON object"),
        (b"\xff\xff", "not valid JSON"),
        (b'{"a": ' * 50_000, "nested too deeply|not valid JSON"),
        (b" " * (5 << 20), "more than .* bytes"),
    ],
)
def test_a_broken_configuration(tmp_path: Path, content: bytes, message: str) -> None:
    path = write_tiny_folder(tmp_path / "f")
    (path / "config.json").write_bytes(content)
    refused(path, message)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    refused(tmp_path, r"there is no config\.json", ModelNotFoundError)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        load(tmp_path / "nowhere")


def test_no_weights(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    refused(path, r"no model\.safetensors .* it has pytorch_model\.bin, which is not read")


def test_a_link_to_nothing(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f")
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to(tmp_path / "gone")
    refused(path, r"model\.safetensors: links to a file that is not there", ModelNotFoundError)


def test_an_embedding_of_more_tokens_than_any_vocabulary(tmp_path: Path) -> None:
    """Before a text is made up for each: the file is all holes, and as large as it says."""
    path = write_tiny_folder(tmp_path / "f", tied=True, dtype="BF16", tensors={"model.embed_tokens.weight": None})
    file = path / "model.safetensors"
    length = int.from_bytes(file.read_bytes()[:8], "little")
    header, data = json.loads(file.read_bytes()[8 : 8 + length]), file.read_bytes()[8 + length :]
    end = len(data) + (2**31 * 64 * 2)
    header["model.embed_tokens.weight"] = {"dtype": "BF16", "shape": [2**31, 64], "data_offsets": [len(data), end]}
    size = write_raw_safetensors(file, json.dumps(header).encode(), data).stat().st_size
    os.truncate(file, size + end - len(data))
    refused(path, "a vocabulary of 2147483648 tokens; hotloop reads 4194304 at most")


def test_every_missing_tensor_is_named_as_the_folder_names_it(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f", tensors={Q_PROJ: None, "model.norm.weight": None})
    refused(path, rf"2 tensors of a llama model are missing: {Q_PROJ}, model\.norm\.weight")


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        (
            "llama",
            {"hidden_size": 128},
            r"\(21\): model.embed_tokens.weight is \[300, 64\] instead of \[300, 128\], .* and 16 more. "
            "Probably hidden_size is wrong: it is 128, but model.embed_tokens.weight says 64",
        ),
        ("llama", {"hidden_size": 100, "head_dim": 16}, r"shape \(21\): .*hidden_size is wrong: it is 100, but"),
        ("gpt2", {"n_embd": 128}, "Probably n_embd is wrong: it is 128, but transformer.wte.weight says 64"),
        ("phi3", {"intermediate_size": 64}, "Probably intermediate_size is wrong: it is 64, but model.layers.0.mlp.down_proj"),
        ("qwen3", {"num_attention_heads": 2}, r"Probably num_attention_heads \* head_dim is wrong: it is 64, but .* says 128"),
        ("llama", {"num_key_value_heads": 4}, r"Probably num_key_value_heads \* head_dim is wrong: it is 64, but .* says 32"),
        (
            "llama",
            {"num_hidden_layers": 9},
            "63 tensors .* missing: .* and 58 more. "
            "Probably num_hidden_layers is wrong: it is 9, but there are weights of 2 layers",
        ),
        ("gpt2", {"n_layer": 1}, r"result: .* and 7 more. Probably n_layer is wrong: it is 1, but .* of 2 layers"),
    ],
)
def test_a_wrong_size_is_named_as_the_cause(
    tmp_path: Path, architecture: str, config: dict[str, Any], message: str
) -> None:
    refused(write_tiny_folder(tmp_path / "f", architecture, config=config), message)


@pytest.mark.parametrize(
    "tensors",
    [
        {"model.embed_tokens.weight": stored("F32", np.ones((300, 96)))},
        {"model.layers.2.mlp.up_proj.weight": stored("F32", np.ones((96, 64))), "lm_head.bias": stored("F32", np.ones(300))},
        {"model.layers.1.mlp.up_proj.weight": None, "model.layers.1.mlp.down_proj.weight": None},
    ],
)
def test_what_no_size_explains_is_blamed_on_none(tmp_path: Path, tensors: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError) as raised:
        load(write_tiny_folder(tmp_path / "f", tensors=tensors))
    assert "Probably" not in str(raised.value)


def test_a_missing_head_is_not_taken_for_a_tied_one(tmp_path: Path) -> None:
    refused(write_tiny_folder(tmp_path / "f", tensors={"lm_head.weight": None}), "lm_head.weight is missing, and tie_word")


def test_a_head_beside_a_tied_embedding(tmp_path: Path) -> None:
    """A copy of the embedding is left out; a matrix of its own is used, as transformers does."""
    for name, dtype, changed in (("copy", "BF16", ()), ("own", "F32", (299,))):
        folder = write_tiny_folder(tmp_path / name, tied=True, dtype="BF16")
        with load(folder) as model:
            shape = model.tensors["token_embd.weight"].shape
            head = dequantize("BF16", model.read("token_embd.weight"), shape)
        head[[*changed]] += 1
        write_tiny_folder(folder, tied=True, dtype="BF16", tensors={"lm_head.weight": stored(dtype, head)})
        with load(folder) as model:
            assert ("output.weight" in model.tensors) == bool(changed)
            assert load_model_spec(model).config.tied_embeddings == (not changed)


def test_a_tensor_under_two_names(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f", "gpt2", tensors={"wte.weight": stored("F32", np.ones((300, 64)))})
    refused(path, "tensors '(transformer.)?wte.weight' and '(transformer.)?wte.weight' are one and the same")


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    tensors = {"model.layers.0.mlp.up_proj.weight": stored("F32", np.ones((95, 64)))}
    path = write_tiny_folder(tmp_path / "f", tensors=tensors)
    refused(path, r"model.layers.0.mlp.up_proj.weight is \[95, 64\] instead of \[96, 64\]$")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (stored("F32", np.ones((4, 4, 4))), r"has the shape \[4, 4, 4\]"),
        (("F32", (), bytes(4)), r"has the shape \[\]"),
        (stored("F32", np.ones((0, 64))), r"has the shape \[0, 64\]"),
        (("F64", (64,), bytes(512)), "is F64; hotloop reads BF16, F16 and F32"),
        (("I64", (64,), bytes(512)), "is I64"),
        (("F8_E5M2", (64,), bytes(64)), "is F8_E5M2"),
    ],
)
def test_a_tensor_that_is_none_of_ours(tmp_path: Path, tensor: Any, message: str) -> None:
    refused(write_tiny_folder(tmp_path / "f", tensors={"model.norm.weight": tensor}), f"'model.norm.weight' {message}")


@pytest.mark.parametrize("name", ["model.layers.0.mlp.experts.0.w1.weight", "model.layers.0.lora_A", "score.weight", "x"])
def test_an_unknown_tensor(tmp_path: Path, name: str) -> None:
    tensors = {name: stored("F32", np.ones((64, 64)))}
    refused(write_tiny_folder(tmp_path / "f", tensors=tensors), f"tensor '{name}' is not implemented for llama")


def test_a_layer_too_many(tmp_path: Path) -> None:
    tensors = {"model.layers.7.input_layernorm.weight": stored("F32", np.ones(64))}
    refused(write_tiny_folder(tmp_path / "f", tensors=tensors), "model.layers.7.input_layernorm.weight")


# Shards.


def shards(tmp_path: Path) -> tuple[Path, list[Path], dict[str, Any]]:
    path = write_tiny_folder(tmp_path / "f", num_shards=3)
    return path, sorted(path.glob("*.safetensors")), json.loads((path / INDEX).read_text())


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("cut", [1, 1000, 0.5])
def test_a_truncated_shard(tmp_path: Path, number: int, cut: float) -> None:
    path, files, _ = shards(tmp_path)
    size = files[number].stat().st_size
    missing = cut if cut >= 1 else int(size * cut)
    files[number].write_bytes(files[number].read_bytes()[: size - int(missing)])
    refused(path, rf"{files[number].name}: .* {int(missing)} bytes are missing")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_shard(tmp_path: Path, number: int) -> None:
    path, files, _ = shards(tmp_path)
    files[number].unlink()
    refused(path, rf"1 of 3 shards are missing: '{files[number].name}'")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    path, files, _ = shards(tmp_path)
    write_safetensors(files[1], {"model.norm.weight": stored("F32", np.ones(64)), Q_PROJ: stored("F32", np.ones((64, 64)))})
    refused(path, r"tensor '.*' is in two shards, model-0000\d-of-00003.safetensors and model-0000\d-of-00003.safetensors")


def test_a_tensor_that_is_not_where_the_index_says(tmp_path: Path) -> None:
    path, files, index = shards(tmp_path)
    index["weight_map"][Q_PROJ] = next(f.name for f in files if f.name != index["weight_map"][Q_PROJ])
    write_json(path / INDEX, index)
    refused(path, rf"tensor '{Q_PROJ}' should be in .*, but is in model-")
    index["weight_map"] |= {Q_PROJ: files[0].name, "model.layers.9.x.weight": files[0].name}
    write_json(path / INDEX, index)
    refused(path, "should be in .*, but is in")


def test_an_index_that_names_too_much(tmp_path: Path) -> None:
    path, files, index = shards(tmp_path)
    index["weight_map"]["model.layers.9.x.weight"] = files[0].name
    write_json(path / INDEX, index)
    refused(path, "'model.layers.9.x.weight' should be in .*, but is in none of the shards")


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "", 3, "a\\b", "x\0y"])
def test_an_index_that_leads_elsewhere(tmp_path: Path, shard: Any) -> None:
    path, _, index = shards(tmp_path)
    index["weight_map"]["model.norm.weight"] = shard
    write_json(path / INDEX, index)
    refused(path, "which names no file beside the index")


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "[]", "{"])
def test_a_broken_index(tmp_path: Path, content: str) -> None:
    path, _, _ = shards(tmp_path)
    (path / INDEX).write_text(content)
    refused(path, "weight_map must map|JSON")


def test_no_index(tmp_path: Path) -> None:
    path, _, _ = shards(tmp_path)
    (path / INDEX).unlink()
    refused(path, r"no model\.safetensors and no model\.safetensors\.index\.json; it has model-00001-of-00003\.safetensors")


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f")
    with load(path) as model_file:
        weights = path / "model.safetensors"
        with weights.open("r+b") as file:
            file.truncate(weights.stat().st_size // 2)
        with pytest.raises(ModelFileError, match=rf"'{Q_PROJ}' cannot be read any more: the file ends in it"):
            model_file.read("blk.1.attn_q.weight")
    with pytest.raises(ValueError, match="closed"):
        model_file.read("blk.0.attn_q.weight")


def test_no_descriptor_is_left_open_by_a_folder_that_is_refused(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f", num_shards=3, tensors={"x": stored("F32", np.ones(4))})
    with no_file_left_open():
        for _ in range(3):
            refused(path, "tensor 'x'")
