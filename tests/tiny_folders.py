"""The tiny models as Hugging Face folders: the same weights as tests/tiny_models.py, written as transformers would.

Names, shapes and configuration are the checkpoints', stated here on their own: nothing of hotloop.weights is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden_models import GoldenCase
from hotloop.quant.formats import quantize
from tiny_models import TinyConfig, checkpoint_tensor, rope_tensors, tensor_shapes, tiny_config
from tiny_tokenizer import CHAT_TEMPLATE, byte_alphabet

Stored = tuple[str, tuple[int, ...], bytes]  # dtype, shape, data

_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_BLOCK = _BLOCK | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI_BLOCK = _BLOCK | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GPT2_BLOCK = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GLM_BLOCK = _BLOCK | {
    "post_attention_norm": "post_self_attn_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "post_ffw_norm": "post_mlp_layernorm",
}
_BLOCKS = {
    "gemma2": _GEMMA_BLOCK,
    "gemma3": _GEMMA_BLOCK,
    "glm4": _GLM_BLOCK,
    "gpt2": _GPT2_BLOCK,
    "olmo2": _GEMMA_BLOCK,
    "phi3": _PHI_BLOCK,
    "starcoder2": _BLOCK | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "starcoder2": "Starcoder2ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
}
_CLASS_KEYS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0},
    "granite": {
        "embedding_multiplier": 1.5, "residual_multiplier": 0.625, "attention_multiplier": 0.375, "logits_scaling": 1.25,
    },
    "smollm3": {"no_rope_layer_interval": 4, "use_sliding_window": False, "layer_types": None},
}  # fmt: skip


def write_tiny_folder(
    path: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "F32",
    vector_dtype: str | None = None,
    num_shards: int = 1,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Stored | None] | None = None,
    generation: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write the model that write_tiny_model(architecture, seed=seed, formats=dtype, **overrides) writes, as a folder.

    dtype: of all tensors, or of the matrices if vector_dtype is given. config: keys of config.json to add or replace;
    tensors: by the folder's names; of both None takes one out. generation: generation_config.json.
    """
    path.mkdir(parents=True, exist_ok=True)
    tiny = tiny_config(architecture, **overrides)
    contents: dict[str, Stored | None] = {}
    for name, shape in tensor_shapes(tiny).items():
        if name in rope_tensors(tiny):
            continue
        values = checkpoint_tensor(tiny, seed, name, shape)
        if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values = values - np.float32(1)
        if architecture == "gpt2" and name.startswith("blk.") and values.ndim == 2:
            values = values.T
        own_dtype = vector_dtype if values.ndim == 1 and vector_dtype is not None else dtype
        contents[checkpoint_name(architecture, name)] = stored(own_dtype, values)
    contents |= tensors or {}
    kept = {name: tensor for name, tensor in contents.items() if tensor is not None}
    write_weights(path, kept, num_shards)
    keys = folder_config(tiny) | dict(config or {})
    write_json(path / "config.json", {key: value for key, value in keys.items() if value is not None})
    write_tokenizer(path, tiny)
    if generation is not None:
        write_json(path / "generation_config.json", generation)
    return path


def checkpoint_name(architecture: str, name: str) -> str:
    """The checkpoint's name of a GGUF tensor."""
    stem, _, suffix = name.rpartition(".")
    top, layers = (_GPT2_TOP, "transformer.h") if architecture == "gpt2" else (_TOP, "model.layers")
    if stem in top:
        return f"{top[stem]}.{suffix}"
    _, layer, part = stem.split(".")
    return f"{layers}.{layer}.{_BLOCKS.get(architecture, _BLOCK)[part]}.{suffix}"


def folder_config(tiny: TinyConfig) -> dict[str, Any]:
    """config.json, in the form of before rope_parameters."""
    if tiny.architecture == "gpt2":
        return _gpt2_config(tiny)
    architecture = {"llama": "mistral", "olmo2": "olmo3"}.get(tiny.architecture) if tiny.window else None
    architecture = architecture or tiny.architecture
    config: dict[str, Any] = {
        "architectures": [CLASSES[architecture]],
        "model_type": "gemma3_text" if architecture == "gemma3" else architecture,
        "hidden_size": tiny.hidden_size,
        "intermediate_size": tiny.intermediate_size,
        "num_hidden_layers": tiny.num_layers,
        "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": tiny.num_kv_heads,
        "head_dim": tiny.head_dim,
        "vocab_size": tiny.vocab_size,
        "max_position_embeddings": tiny.context_length,
        "norm_epsilon" if architecture == "starcoder2" else "rms_norm_eps": 1e-6,
        "rope_theta": tiny.rope_base,
        "tie_word_embeddings": tiny.tied,
        "torch_dtype": "float32",
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
    }
    if architecture in ("gemma2", "gemma3"):
        config |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": tiny.head_dim}
    else:
        config["hidden_act"] = "gelu_pytorch_tanh" if architecture == "starcoder2" else "silu"
    config |= _CLASS_KEYS.get(architecture, {})
    if architecture in ("llama", "granite", "smollm3", "glm4"):
        config["attention_bias"] = tiny.qkv_bias
    if architecture == "starcoder2":
        config["use_bias"] = tiny.qkv_bias
    if tiny.rotary_dim is not None:
        config["partial_rotary_factor"] = tiny.rotary_dim / tiny.head_dim
    if tiny.window is not None:
        config["sliding_window"] = tiny.window
    if architecture == "mistral":
        config.setdefault("sliding_window", None)
    return config


def _gpt2_config(tiny: TinyConfig) -> dict[str, Any]:
    return {
        "architectures": [CLASSES["gpt2"]],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-6,
        "n_ctx": tiny.context_length,
        "n_embd": tiny.hidden_size,
        "n_head": tiny.num_heads,
        "n_inner": tiny.intermediate_size,
        "n_layer": tiny.num_layers,
        "n_positions": tiny.context_length,
        "summary_type": "cls_index",
        "tie_word_embeddings": tiny.tied,
        "vocab_size": tiny.vocab_size,
    }


def write_weights(path: Path, tensors: Mapping[str, Stored], num_shards: int = 1) -> list[Path]:
    """model.safetensors, or shards (tensors dealt out in turn) and their index."""
    if num_shards == 1:
        return [write_safetensors(path / "model.safetensors", tensors)]
    names = list(tensors)
    files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    weight_map = {name: files[i % num_shards] for i, name in enumerate(names)}
    for file in files:
        write_safetensors(path / file, {name: tensors[name] for name in names if weight_map[name] == file})
    index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}, "weight_map": weight_map}
    write_json(path / "model.safetensors.index.json", index)
    return [path / file for file in files]


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> Path:
    """One file, tensors in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    return write_raw_safetensors(path, json.dumps(header).encode(), b"".join(data for _, _, data in tensors.values()))


def write_raw_safetensors(path: Path, header: bytes, data: bytes) -> Path:
    """A file with this header, whatever it says."""
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def write_tokenizer(path: Path, tiny: TinyConfig) -> None:
    """tokenizer.json and tokenizer_config.json of the vocabulary in tests/tiny_tokenizer.py."""
    sentencepiece = tiny.architecture in ("gemma2", "gemma3")
    definition, special = _sentencepiece(tiny.vocab_size) if sentencepiece else _byte_level(tiny.vocab_size)
    write_json(path / "tokenizer.json", definition)
    write_json(path / "tokenizer_config.json", special | {"chat_template": CHAT_TEMPLATE})


def _byte_level(vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    merges = ["Ġ t", "h e", "i n", "Ġ a", "Ġt he", "o n", "r e", "Ġ s"]
    vocab = {text: i for i, text in enumerate(byte_alphabet() + [merge.replace(" ", "") for merge in merges])}
    added = [_added(len(vocab) + i, text) for i, text in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]
    definition = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": False},
    }  # fmt: skip
    return definition, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": False}


def _sentencepiece(vocab_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|im_start|>", "<|im_end|>"]
    pieces = ["▁", "e", "t", "a", "o", "n", "▁t", "he", "▁the"]
    texts = [*special, *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    definition = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added(i, text) for i, text in enumerate(special)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts)}, "unk_token": "<unk>",
                  "merges": [["▁", "t"], ["▁t", "he"]], "byte_fallback": True, "fuse_unk": True},
    }  # fmt: skip
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return definition, names | {"add_bos_token": True}


def _added(token_id: int, text: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": text, **flags}


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def stored(dtype: str, values: NDArray[Any] | Sequence[float]) -> Stored:
    """A tensor for `write_tiny_folder(tensors=...)`: floats in F32, F16 or BF16, other arrays as they are."""
    array = np.asarray(values)
    data = quantize(dtype, array.astype(np.float32)) if dtype in ("F32", "F16", "BF16") else array
    return dtype, array.shape, data.tobytes()


def write_golden_folder(path: Path, case: GoldenCase, **changes: Any) -> Path:
    """The model of a golden case as a folder: what `case.write` writes as a GGUF file. changes: of write_tiny_folder."""
    config = dict(case.hf_config)
    if case.hf_rope:
        config["rope_scaling"] = dict(case.hf_rope)
    arguments = {"seed": case.seed, "config": config, **case.overrides, **changes}
    return write_tiny_folder(path, case.architecture, **arguments)
