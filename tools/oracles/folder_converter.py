"""Compare how hotloop reads Hugging Face folders with what llama.cpp's converter makes of them.

    python tools/oracles/folder_converter.py LLAMA_CPP_CHECKOUT [FOLDER ...]

Needs torch and transformers beside hotloop's test dependencies. Without folders: tiny random models, saved by transformers
(`save_pretrained`), one for each class and quirk below. Every key below `<architecture>.` and every tensor of the
converted file must be in the folder's ModelFile with the same value, bit for bit, and nothing more; prints what differs
and ends with status 1.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from hotloop.quant.formats import dequantize  # noqa: E402
from hotloop.weights.gguf import GGUFFile  # noqa: E402
from hotloop.weights.model_file import ModelFile  # noqa: E402
from hotloop.weights.open_model import open_model  # noqa: E402
from tiny_folders import write_tokenizer  # noqa: E402
from tiny_models import tiny_config  # noqa: E402

_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 300, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": 264, "eos_token_id": 266,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32}
_GRANITE = {
    "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
    "long_factor": [1.0 + i / 3 for i in range(6)], "short_factor": [1.0 + i / 8 for i in range(6)],
}  # fmt: skip

CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "Llama", {}),
    ("llama-bias", "Llama", {"attention_bias": True, "head_dim": 32, "tie_word_embeddings": True}),
    ("llama3", "Llama", {"rope_parameters": _LLAMA3, "head_dim": 64}),
    ("mistral", "Mistral", {"sliding_window": None}),
    ("qwen2", "Qwen2", {"rope_parameters": _YARN}),
    ("qwen3", "Qwen3", {"head_dim": 32}),
    ("gemma2", "Gemma2", {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32}),
    ("granite", "Granite", _GRANITE),
    ("granite-bias", "Granite", _GRANITE | {"attention_bias": True, "tie_word_embeddings": True}),
    ("smollm3", "SmolLM3", {"num_hidden_layers": 5}),
    ("smollm3-yarn", "SmolLM3", {"rope_parameters": _YARN, "tie_word_embeddings": False}),
    ("phi3", "Phi3", {"num_key_value_heads": 4, "original_max_position_embeddings": 128}),
    ("phi3-longrope", "Phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32, "sliding_window": 16}),
    ("olmo2", "Olmo2", {}),
    ("olmo3", "Olmo3", {"sliding_window": 16}),
    ("starcoder2", "Starcoder2", {}),
    ("starcoder2-plain", "Starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    ("glm4", "Glm4", {"head_dim": 32}),
    ("gpt2", "GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_ctx": 128}),
    ("gemma3", "Gemma3Text", {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32}),
)
# Keys that one of the two need not have: the default says the same, or hotloop states what the converter leaves open.
_OPTIONAL = (
    "vocab_size", "rope.freq_base", "rope.dimension_count", "attention.key_length", "attention.value_length",
    "rope.freq_base_swa", "attention.sliding_window_pattern", "attention.scale",
)  # fmt: skip


def main() -> None:
    checkout, folders = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    sys.path[:0] = [str(checkout), str(checkout / "gguf-py")]
    num_different = 0
    with tempfile.TemporaryDirectory() as scratch:
        for folder in folders or [save(Path(scratch) / name, kind, config) for name, kind, config in CASES]:
            target = Path(scratch) / "converted.gguf"
            convert(folder, target)
            with open_model(folder) as ours, GGUFFile.open(target) as theirs:
                differences = compare(ours, theirs)
            print(f"{folder.name}: {len(differences)} differences")
            for difference in differences:
                print("   ", difference)
            num_different += bool(differences)
    sys.exit(num_different > 0)


def save(folder: Path, kind: str, config: dict[str, Any]) -> Path:
    """A random bf16 model of a class, as transformers saves it, with the tiny tokenizer."""
    torch.manual_seed(len(folder.name))
    name = kind.removesuffix("Text")
    model_class = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    shared = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")  # GPT-2 has its own names for the others
    sizes = {key: _SIZES[key] for key in shared} if name == "GPT2" else _SIZES
    model = model_class(model_class.config_class(**(sizes | config))).to(torch.bfloat16)
    for tensor_name, parameter in model.named_parameters():
        if "norm" in tensor_name:
            torch.nn.init.normal_(parameter, 0.5, 0.25)
    model.save_pretrained(folder, max_shard_size="100KB")
    # A byte-level one for all: only the weights and the keys of the architecture are compared.
    write_tokenizer(folder, tiny_config("llama"))
    return folder


def convert(folder: Path, target: Path) -> None:
    """Write the converter's file, without a vocabulary: it knows tokenizers by a hash of theirs only."""
    import conversion
    from conversion.base import ModelBase
    from gguf import LlamaFileType

    target.unlink(missing_ok=True)
    hparams = ModelBase.load_hparams(folder, False)
    model_class = conversion.get_model_class(hparams["architectures"][0])
    model_class.set_vocab = lambda self: None
    with torch.inference_mode():
        model_class(folder, LlamaFileType.MOSTLY_BF16, target).write()


def compare(ours: ModelFile, theirs: ModelFile) -> list[str]:
    """What differs, one line each."""
    prefix = theirs.get_str("general.architecture") + "."
    differences = []
    if ours.get_str("general.architecture") + "." != prefix:
        differences.append(f"architecture: {ours.get_str('general.architecture')} and {prefix}")
    for key in sorted({*ours.metadata, *theirs.metadata}):
        a, b = ours.metadata.get(key), theirs.metadata.get(key)
        missing = a is None or b is None
        if not key.startswith(prefix) or (missing and key.removeprefix(prefix) in _OPTIONAL):
            continue
        if missing or not np.array_equal(np.asarray(a), np.asarray(b)):
            differences.append(f"{key}: {a!r:.80} and {b!r:.80}")
    for name in sorted({*ours.tensors, *theirs.tensors}):
        if name not in ours.tensors or name not in theirs.tensors:
            differences.append(f"{name}: only {'ours' if name in ours.tensors else 'theirs'} has it")
            continue
        a, b = values(ours, name), values(theirs, name)
        if name == "token_embd.weight":
            a = a[: len(b)]  # the converter cuts some classes' rows beyond the vocabulary
        if a.shape != b.shape or not (a == b).all():
            differences.append(f"{name}: {a.shape} and {b.shape}, or other values")
    return differences


def values(model_file: ModelFile, name: str) -> np.ndarray:
    """What a tensor stands for, bit by bit: the converter widens vectors."""
    info = model_file.tensors[name]
    return dequantize(info.format, model_file.read(name), info.shape).view(np.uint32)


if __name__ == "__main__":
    main()
