"""An independent float64 forward pass of llama, qwen2, qwen3 and gemma3 models from a GGUF file.

The reference the engine is measured against: numpy float64 over the dequantized weights, no code shared with
hotloop. Weights are dequantized one at a time, so memory is a layer, the activations and the logits.

    python tools/oracles/float64_forward.py MODEL.gguf --tokens ids.npy --out logits.npy \
        [--activations int8] [--kv f16]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from gguf_model import F32, F64, GgufModel
from rope import Rope, model_rope

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
ACTIVATION_GROUP = 32
HEAD_ROWS = 16_384  # vocabulary rows dequantized at a time
GEMMA3_27B_LAYERS = 62  # the one gemma3 size whose query scale is not 1 / sqrt(key_length)

Activations = Literal["f64", "int8"]
KvDtype = Literal["f64", "f16"]


@dataclass(frozen=True, slots=True)
class Rounding:
    """What is rounded on purpose, to model the engine's own formats; by default nothing."""

    activations: Activations = "f64"
    kv: KvDtype = "f64"


def quantize_activations(x: F64) -> F64:
    """Round x, float64 [T, K], to int8 codes per group of 32 along K and back.

    A group's scale is its largest magnitude / 127 in f32; codes are rounded to nearest, ties to even.
    """
    groups = x.reshape(len(x), -1, ACTIVATION_GROUP)
    amax = np.abs(groups).max(axis=-1, keepdims=True).astype(np.float32)
    scale = (amax / np.float32(127)).astype(np.float64)
    codes = np.rint(np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0))
    rounded: F64 = np.clip(codes, -127, 127) * scale
    return rounded.reshape(x.shape)


def rms_norm(x: F64, weight: F64, epsilon: float) -> F64:
    """x / rms(x) * weight over the last axis."""
    rms: F64 = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon)
    return x / rms * weight


def silu(x: F64) -> F64:
    """x * sigmoid(x), without overflow."""
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))


def gelu_tanh(x: F64) -> F64:
    """The tanh form of GELU. Source: arXiv 1606.08415, section 2."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def attention(q: F64, k: F64, v: F64, scale: float, window: int | None) -> F64:
    """Causal attention of one sequence.

    q: float64 [T, num_heads, head_dim]; k, v: float64 [T, num_kv_heads, head_dim]; `window`: the last so many
    positions, the current one included, or all. Returns float64 [T, num_heads * head_dim].
    """
    num_tokens, num_heads, _ = q.shape
    repeat = num_heads // k.shape[1]
    distance = np.arange(num_tokens)[:, None] - np.arange(num_tokens)[None, :]
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    out = np.empty((num_tokens, num_heads, v.shape[2]))
    for head in range(num_heads):
        scores = q[:, head] @ k[:, head // repeat].T * scale
        scores[hidden] = -np.inf
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = probs @ v[:, head // repeat] / probs.sum(axis=-1, keepdims=True)
    return out.reshape(num_tokens, -1)


class Float64Model:
    """The forward pass over one file; holds hyper-parameters, reads each weight when its turn comes."""

    def __init__(self, model: GgufModel, rounding: Rounding = Rounding()) -> None:
        if model.architecture not in ARCHITECTURES:
            raise ValueError(f"{model.path}: no float64 oracle for architecture {model.architecture!r}")
        self.model = model
        self.rounding = rounding
        self.is_gemma3 = model.architecture == "gemma3"
        self.num_layers = int(model.parameter("block_count"))
        self.hidden_size = int(model.parameter("embedding_length"))
        self.num_heads = int(model.parameter("attention.head_count"))
        self.num_kv_heads = int(model.parameter("attention.head_count_kv", self.num_heads))
        self.head_dim = int(model.parameter("attention.key_length", self.hidden_size // self.num_heads))
        self.epsilon = float(model.parameter("attention.layer_norm_rms_epsilon"))
        self.window = int(model.parameter("attention.sliding_window", 0))
        scaled_dim = self.head_dim
        if self.is_gemma3 and self.num_layers == GEMMA3_27B_LAYERS:
            scaled_dim = self.hidden_size // self.num_heads
        self.attention_scale = float(model.parameter("attention.scale", 1.0 / math.sqrt(scaled_dim)))
        self.rope = model_rope(model, self.head_dim)
        self.local_rope = model_rope(model, self.head_dim, local=True)

    def _linear(self, x: F64, name: str) -> F64:
        """x @ W.T (+ bias), with x rounded to int8 groups if that is modelled and W is a quantized tensor."""
        if self.rounding.activations == "int8" and self.model.is_quantized(f"{name}.weight"):
            x = quantize_activations(x)
        out: F64 = x @ self.model.rows(f"{name}.weight").T
        if self.model.has(f"{name}.bias"):
            out += self.model.vector(f"{name}.bias")
        return out

    def _norm(self, x: F64, name: str) -> F64:
        return rms_norm(x, self.model.vector(f"{name}.weight"), self.epsilon)

    def _layer_kind(self, layer: int) -> tuple[Rope, int | None]:
        """Rotation and window of a layer; in gemma3 every sixth layer sees the whole context."""
        pattern = int(self.model.parameter("attention.sliding_window_pattern", 6)) if self.is_gemma3 else 1
        return (self.rope, None) if (layer + 1) % pattern == 0 else (self.local_rope, self.window)

    def _attend(self, x: F64, layer: int, bounds: Sequence[tuple[int, int]]) -> F64:
        """Attention of one layer before its projection, all sequences, float64 [T, num_heads * head_dim]."""
        block = f"blk.{layer}"
        q = self._linear(x, f"{block}.attn_q").reshape(len(x), self.num_heads, self.head_dim)
        k = self._linear(x, f"{block}.attn_k").reshape(len(x), self.num_kv_heads, self.head_dim)
        v = self._linear(x, f"{block}.attn_v").reshape(len(x), self.num_kv_heads, -1)
        if self.model.has(f"{block}.attn_q_norm.weight"):
            q = self._norm(q, f"{block}.attn_q_norm")
            k = self._norm(k, f"{block}.attn_k_norm")
        rope, window = self._layer_kind(layer)
        parts = []
        for start, stop in bounds:
            keys, values = rope.rotate(k[start:stop]), v[start:stop]
            if self.rounding.kv == "f16":
                keys = keys.astype(np.float16).astype(np.float64)
                values = values.astype(np.float16).astype(np.float64)
            queries = rope.rotate(q[start:stop])
            parts.append(attention(queries, keys, values, self.attention_scale, window))
        return np.concatenate(parts)

    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> F64:
        """Final normed hidden states, float64 [sum of lengths, hidden_size], sequences one after another."""
        ids = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
        ends = np.cumsum([len(sequence) for sequence in sequences]).tolist()
        bounds = list(zip([0, *ends[:-1]], ends, strict=True))
        x = self.model.rows("token_embd.weight", ids)
        if self.is_gemma3:
            x = x * math.sqrt(self.hidden_size)
        for layer in range(self.num_layers):
            block = f"blk.{layer}"
            attended = self._attend(self._norm(x, f"{block}.attn_norm"), layer, bounds)
            update = self._linear(attended, f"{block}.attn_output")
            x = x + (self._norm(update, f"{block}.post_attention_norm") if self.is_gemma3 else update)
            normed = self._norm(x, f"{block}.ffn_norm")
            gate = self._linear(normed, f"{block}.ffn_gate")
            gate = gelu_tanh(gate) if self.is_gemma3 else silu(gate)
            update = self._linear(gate * self._linear(normed, f"{block}.ffn_up"), f"{block}.ffn_down")
            x = x + (self._norm(update, f"{block}.post_ffw_norm") if self.is_gemma3 else update)
        return self._norm(x, "output_norm")

    def logits(self, hidden: F64, out: F32 | None = None) -> F32:
        """Logits of some hidden states, [rows, vocab_size]: computed in float64, kept in float32."""
        name = "output.weight" if self.model.has("output.weight") else "token_embd.weight"
        if self.rounding.activations == "int8" and self.model.is_quantized(name):
            hidden = quantize_activations(hidden)
        vocab_size = self.model.num_rows(name)
        if out is None:
            out = np.empty((len(hidden), vocab_size), dtype=np.float32)
        for start in range(0, vocab_size, HEAD_ROWS):
            rows = slice(start, min(start + HEAD_ROWS, vocab_size))
            out[:, rows] = hidden @ self.model.rows(name, rows).T
        return out


def forward(path: Path, token_ids: Sequence[int], rounding: Rounding = Rounding()) -> F32:
    """Logits of every position of one sequence, float32 [T, vocab_size]."""
    model = Float64Model(GgufModel(path), rounding)
    return model.logits(model.hidden_states([token_ids]))


def last_logits(path: Path, sequences: Sequence[Sequence[int]]) -> F32:
    """Logits after each sequence's last token, float32 [sequences, vocab_size]; weights are read once."""
    model = Float64Model(GgufModel(path))
    ends = np.cumsum([len(sequence) for sequence in sequences]) - 1
    return model.logits(model.hidden_states(sequences)[ends])


def best_next_tokens(
    path: Path, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
) -> list[list[int]]:
    """At each position of each continuation, the most likely token given all tokens before it."""
    model = Float64Model(GgufModel(path))
    sequences = [[*prompt, *out[:-1]] for prompt, out in zip(prompts, continuations, strict=True)]
    hidden = model.hidden_states(sequences)
    best, end = [], 0
    for sequence, out in zip(sequences, continuations, strict=True):
        end += len(sequence)
        best.append([int(token) for token in model.logits(hidden[end - len(out) : end]).argmax(axis=-1)])
    return best


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=Path, required=True, help=".npy of token ids")
    parser.add_argument("--out", type=Path, required=True, help=".npy for float32 logits [T, vocab_size]")
    parser.add_argument("--activations", choices=["f64", "int8"], default="f64")
    parser.add_argument("--kv", choices=["f64", "f16"], default="f64")
    arguments = parser.parse_args()
    rounding = Rounding(arguments.activations, arguments.kv)
    np.save(arguments.out, forward(arguments.model, np.load(arguments.tokens).tolist(), rounding))


if __name__ == "__main__":
    main()
