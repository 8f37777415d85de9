"""Compute tests/golden/models with transformers: `python tools/make_model_goldens.py [--check]`.

Needs torch and transformers beside hotloop's test dependencies. A model's file holds the token ids and every
7th logit of each token, and nothing else: the weights follow from the case's seed (tests/tiny_models.py).
rope.npz holds the frequencies and attention factors that transformers derives from rope parameters.
--check recomputes and compares instead of writing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from golden_models import CASES, COLUMN_STEP, GOLDEN_DIR, ROPE_CASES, GoldenCase  # noqa: E402
from tiny_models import checkpoint_tensor, rope_tensors, tensor_shapes  # noqa: E402

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
# In gemma and OLMo the name post_attention_layernorm means what it says.
GEMMA_NAMES = {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm"}
NAMES_OF = {
    "gemma2": GEMMA_NAMES,
    "gemma3": GEMMA_NAMES,
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "olmo2": {"post_attention_norm": "post_attention_layernorm"},
    "glm4": {
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
    },
    "starcoder2": {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    "gpt2": {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
    },
}


def golden_logits(case: GoldenCase) -> NDArray[np.float32]:
    """Every 7th logit of every token, computed in float64 as far as transformers goes along."""
    config = case.config
    model_class = getattr(transformers, case.hf_class)
    parameters = _gpt2_parameters(case) if case.architecture == "gpt2" else _parameters(case)
    hf_config = model_class.config_class(
        vocab_size=config.vocab_size,
        tie_word_embeddings=config.tied,
        pad_token_id=None,
        attn_implementation="eager",
        **parameters,
    )
    model = model_class(hf_config).to(torch.float64)
    state = {}
    for name, shape in tensor_shapes(config).items():
        if name in rope_tensors(config):
            continue
        values = checkpoint_tensor(config, case.seed, name, shape).astype(np.float64)
        if case.architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values -= 1
        if case.architecture == "gpt2" and name.startswith("blk.") and len(shape) == 2:
            values = values.T.copy()  # its linear layers hold [inputs, outputs]
        state[_checkpoint_name(case, name)] = torch.from_numpy(values)
    if config.tied:
        state["lm_head.weight"] = state[_checkpoint_name(case, "token_embd.weight")]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([case.token_ids])).logits[0]
    return logits[:, ::COLUMN_STEP].to(torch.float32).numpy()


def _parameters(case: GoldenCase) -> dict[str, Any]:
    config = case.config
    rope: Any = {"rope_type": "default", "rope_theta": config.rope_base, **case.hf_rope}
    extra: dict[str, Any] = {"max_position_embeddings": config.context_length, **case.hf_config}
    if case.architecture in ("gemma3", "olmo2") and config.window is not None:
        local_base = 10000.0 if case.architecture == "gemma3" else config.rope_base
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": local_base}}
        extra["sliding_window"] = config.window
    if case.architecture == "gemma3":
        extra["query_pre_attn_scalar"] = config.head_dim
    if config.rotary_dim is not None:
        rope["partial_rotary_factor"] = config.rotary_dim / config.head_dim
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "norm_epsilon" if case.architecture == "starcoder2" else "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        **extra,
    }


def _gpt2_parameters(case: GoldenCase) -> dict[str, Any]:
    config = case.config
    return {
        "n_embd": config.hidden_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.intermediate_size,
        "n_positions": config.context_length,
        "layer_norm_epsilon": 1e-6,
        **case.hf_config,
    }


def _checkpoint_name(case: GoldenCase, name: str) -> str:
    names = NAMES | NAMES_OF.get(case.architecture, {})
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{names[stem]}.{suffix}"
    _, layer, part = stem.split(".")
    layers = "transformer.h" if case.architecture == "gpt2" else "model.layers"
    return f"{layers}.{layer}.{names[part]}.{suffix}"


def golden_ropes() -> dict[str, NDArray[np.float64]]:
    """Per rope case: frequencies float64 [head_dim / 2] (computed in float32), then the attention factor."""
    arrays = {}
    for case in ROPE_CASES:
        config = transformers.LlamaConfig(
            hidden_size=case.head_dim,
            num_attention_heads=1,
            max_position_embeddings=case.context_length,
            rope_parameters={"rope_theta": case.base, **case.hf_rope},
        )
        rope = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        frequencies = rope.inv_freq.to(torch.float64).numpy()
        arrays[case.name] = np.append(frequencies, rope.attention_scaling)
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    check = parser.parse_args().check
    GOLDEN_DIR.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, NDArray[Any]]] = {"rope": dict(golden_ropes())}
    for case in CASES:
        token_ids = np.array(case.token_ids, np.int32)
        files[case.name] = {"token_ids": token_ids, "logits": golden_logits(case)}
    for name, arrays in files.items():
        path = GOLDEN_DIR / f"{name}.npz"
        if not check:
            np.savez_compressed(path, **arrays)
            print(f"{name}: {path.stat().st_size} bytes")
            continue
        stored = np.load(path)
        difference = max(np.abs(stored[key] - array).max() for key, array in arrays.items())
        print(f"{name}: largest difference {difference:.1e}")
        assert difference < 1e-5, f"{name} has changed"


if __name__ == "__main__":
    main()
