"""Write a Hugging Face folder of a real shape with random bf16 weights: to measure loading and quantizing with.

python benchmarks/peers/write_random_folder.py OUT [--shape llama-3.2-1b|0.5b] [--layers N] [--shard-bytes 1000000000]

A Llama with tied embeddings, in shards as the hub has them. The tokenizer is byte-level, with a merge for every token but bytes
and an end token, so that it takes as long to load as a real one. The memory needed is that of one tensor.
"""

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from write_random_model import SHAPES, Shape, tensor_shapes

from hotloop.quant.formats import quantize

FOLDER_SHAPES = SHAPES | {"0.5b": Shape(896, 24, 14, 2, 64, 4864, 151936, 1e6, 32768)}
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=FOLDER_SHAPES, default="0.5b")
    parser.add_argument("--layers", type=int, help="fewer layers than the real shape has")
    parser.add_argument("--shard-bytes", type=int, default=10**9)
    args = parser.parse_args()
    shape = FOLDER_SHAPES[args.shape]
    if args.layers is not None:
        shape = replace(shape, num_layers=args.layers)
    write_random_folder(args.out, shape, args.shard_bytes)
    print(f"{args.out}: {sum(path.stat().st_size for path in args.out.iterdir()) / 1e6:.0f} MB")


def write_random_folder(out: Path, shape: Shape, shard_bytes: int) -> None:
    """The same bytes for the same arguments."""
    out.mkdir(parents=True, exist_ok=True)
    shards = list(_shards({checkpoint_name(n): dims for n, dims in tensor_shapes(shape).items()}, shard_bytes))
    rng = np.random.default_rng(0)
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(out / name, shard, rng)
        weight_map |= dict.fromkeys(shard, name)
    _write_json(out / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    _write_json(out / "config.json", _config(shape))
    _write_json(out / "tokenizer.json", _tokenizer(shape.vocab_size))
    _write_json(out / "tokenizer_config.json", {"bos_token": "<end>", "eos_token": "<end>", "add_bos_token": False})


def checkpoint_name(name: str) -> str:
    """The folder's name of a GGUF tensor."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{_NAMES[part]}.{suffix}"
    return {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[stem] + "." + suffix


def _shards(tensors: dict[str, tuple[int, ...]], shard_bytes: int) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, dims in tensors.items():
        nbytes = 2 * int(np.prod(dims))
        if shard and size + nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = dims
        size += nbytes
    yield shard


def _write_shard(path: Path, tensors: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dims in tensors.items():
        end = offset + 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for dims in tensors.values():
            values = rng.standard_normal(dims, np.float32)
            values = 1 + values / 16 if len(dims) == 1 else values * np.float32(dims[-1] ** -0.5)
            file.write(quantize("BF16", values).data)


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "hidden_size": shape.hidden_size, "num_hidden_layers": shape.num_layers, "head_dim": shape.head_dim,
        "num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size, "vocab_size": shape.vocab_size, "rope_theta": shape.rope_base,
        "max_position_embeddings": shape.context_length, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    """Bytes, then pairs of bytes, then pairs of pairs, each by a merge; an end token."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    tokens = [chr(code) for code in printable + [256 + i for i in range(256 - len(printable))]]
    pairs = [(a, b) for a in tokens[:94] for b in tokens[:94]]
    merges = pairs[: vocab_size - 257]
    merges += [(a + b, c + d) for a, b in pairs[:40] for c, d in pairs][: vocab_size - 257 - len(merges)]
    tokens += [a + b for a, b in merges]
    end = {"id": len(tokens), "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "added_tokens": [end | {"normalized": False}], "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges},
    }  # fmt: skip


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


if __name__ == "__main__":
    main()
