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
PHI_NAMES = NAMES | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
# In gemma the name post_attention_layernorm means what it says.
GEMMA_NAMES = NAMES | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
}
NAMES_OF = {"gemma2": GEMMA_NAMES, "gemma3": GEMMA_NAMES, "phi3": PHI_NAMES}


def golden_logits(case: GoldenCase) -> NDArray[np.float32]:
    """Every 7th logit of every token, computed in float64 as far as transformers goes along."""
    config = case.config
    model_class = getattr(transformers, case.hf_class)
    rope: Any = {"rope_type": "default", "rope_theta": config.rope_base, **case.hf_rope}
    extra: dict[str, Any] = {"max_position_embeddings": config.context_length, **case.hf_config}
    if case.architecture == "gemma3":
        local = {"rope_type": "default", "rope_theta": 10000.0}
        rope = {"full_attention": rope, "sliding_attention": local}
        extra |= {"sliding_window": config.window, "query_pre_attn_scalar": config.head_dim}
    model = model_class(
        model_class.config_class(
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            pad_token_id=None,
            rms_norm_eps=1e-6,
            rope_parameters=rope,
            tie_word_embeddings=config.tied,
            attn_implementation="eager",
            **extra,
        )
    ).to(torch.float64)
    state = {}
    for name, shape in tensor_shapes(config).items():
        if name in rope_tensors(config):
            continue
        values = checkpoint_tensor(config, case.seed, name, shape).astype(np.float64)
        if case.architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values -= 1
        state[_checkpoint_name(case, name)] = torch.from_numpy(values)
    if config.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([case.token_ids])).logits[0]
    return logits[:, ::COLUMN_STEP].to(torch.float32).numpy()


def _checkpoint_name(case: GoldenCase, name: str) -> str:
    names = NAMES_OF.get(case.architecture, NAMES)
    stem, _, suffix = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{names[stem]}.{suffix}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{names[part]}.{suffix}"


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
