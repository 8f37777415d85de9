"""Check the float64 forward pass against llama.cpp on tiny random models: architectures and rope scalings.

Weights are f32 here, so both compute the same function and the logits must agree to f32's rounding. Runs in
the environment that has `llama-cpp-python`:

    python tools/oracles/check_float64.py
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from float64_forward import forward
from gguf import GGUFValueType, GGUFWriter
from metrics import agreement

NUM_TOKENS = 96
VOCAB_SIZE = 256
HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 64, 128, 7, 4, 2, 32
MAX_MEAN_KL = 1e-9
MAX_MEAN_KL_GELU = 1e-5  # llama.cpp looks its GELU up in a table of f16 values
GGML_TYPE_F32 = 0
VALUE_TYPES = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}


@dataclass(frozen=True, slots=True)
class Case:
    """A tiny model: its architecture, and metadata keys below its name beyond the common ones."""

    architecture: str
    keys: dict[str, Any] = field(default_factory=dict)
    rope_freqs: bool = False


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
CASES = (
    Case("llama"),
    Case("llama", rope_freqs=True),
    Case("llama", LINEAR),
    Case("llama", YARN),
    Case("qwen2", YARN),
    Case("qwen3", {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM}),
    Case("qwen3", {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM, **YARN}),
    Case("gemma3", {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM}),
    Case("gemma3", {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM, **LINEAR}),
)


def write_model(path: Path, case: Case, seed: int) -> None:
    """Write a random f32 model with the case's keys; projections are wide enough that logits are not flat."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, case.architecture)
    head_dim = int(case.keys.get("attention.key_length", HIDDEN_SIZE // NUM_HEADS))
    keys = {
        "context_length": 256,
        "embedding_length": HIDDEN_SIZE,
        "block_count": NUM_LAYERS,
        "feed_forward_length": INTERMEDIATE_SIZE,
        "attention.head_count": NUM_HEADS,
        "attention.head_count_kv": NUM_KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 100_000.0,
        "rope.dimension_count": head_dim,
        "vocab_size": VOCAB_SIZE,
        **({"attention.sliding_window": 24} if case.architecture == "gemma3" else {}),
        **case.keys,
    }
    for key, value in keys.items():
        writer.add_key_value(f"{case.architecture}.{key}", value, VALUE_TYPES[type(value)])
    writer.add_string("tokenizer.ggml.model", "none")

    def matrix(name: str, rows: int, cols: int) -> None:
        writer.add_tensor(name, (rng.standard_normal((rows, cols)) * cols**-0.5).astype(np.float32))

    def vector(name: str, size: int, center: float) -> None:
        writer.add_tensor(name, (center + 0.2 * rng.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", VOCAB_SIZE, HIDDEN_SIZE)
    vector("output_norm.weight", HIDDEN_SIZE, 2.0)
    if case.rope_freqs:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, head_dim // 2).astype(np.float32))
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        for name, rows, cols in (
            ("attn_q", NUM_HEADS * head_dim, HIDDEN_SIZE),
            ("attn_k", NUM_KV_HEADS * head_dim, HIDDEN_SIZE),
            ("attn_v", NUM_KV_HEADS * head_dim, HIDDEN_SIZE),
            ("attn_output", HIDDEN_SIZE, NUM_HEADS * head_dim),
            ("ffn_gate", INTERMEDIATE_SIZE, HIDDEN_SIZE),
            ("ffn_up", INTERMEDIATE_SIZE, HIDDEN_SIZE),
            ("ffn_down", HIDDEN_SIZE, INTERMEDIATE_SIZE),
        ):
            matrix(f"{block}.{name}.weight", rows, cols)
            if case.architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                vector(f"{block}.{name}.bias", rows, 0.0)
        vector(f"{block}.attn_norm.weight", HIDDEN_SIZE, 1.0)
        vector(f"{block}.ffn_norm.weight", HIDDEN_SIZE, 1.0)
        if case.architecture in ("qwen3", "gemma3"):
            vector(f"{block}.attn_q_norm.weight", head_dim, 1.5)
            vector(f"{block}.attn_k_norm.weight", head_dim, 1.5)
        if case.architecture == "gemma3":
            vector(f"{block}.post_attention_norm.weight", HIDDEN_SIZE, 1.0)
            vector(f"{block}.post_ffw_norm.weight", HIDDEN_SIZE, 1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Command line."""
    ids = np.random.default_rng(7).integers(0, VOCAB_SIZE, NUM_TOKENS).tolist()
    passed = True
    for seed, case in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            write_model(path, case, seed)
            llm = llama_cpp.Llama(
                str(path), n_ctx=NUM_TOKENS, n_threads=1, logits_all=True, verbose=False,
                type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32,
            )  # fmt: skip
            llm.eval(ids)
            result = agreement(forward(path, ids), llm.scores[:NUM_TOKENS])
        agrees = result.mean_kl < (MAX_MEAN_KL_GELU if case.architecture == "gemma3" else MAX_MEAN_KL)
        passed &= agrees
        print(f"{'pass' if agrees else 'FAIL'}: {case}: {result}", flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
