"""Make tests/golden/folder with transformers: `python tools/make_folder_golden.py`.

A tiny random Qwen2 model in bf16 as `save_pretrained` writes it (two shards, generation_config.json), the tiny tokenizer,
and in logits.npz the token ids and the logits that transformers computes from the saved folder, in float64.
Needs torch and transformers beside hotloop's test dependencies.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from tiny_folders import write_tokenizer  # noqa: E402
from tiny_models import random_tokens, tiny_config  # noqa: E402

FOLDER = ROOT / "tests" / "golden" / "folder"
NUM_TOKENS = 24


def main() -> None:
    torch.manual_seed(7)
    config = transformers.Qwen2Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=280, max_position_embeddings=64, initializer_range=0.15, rope_theta=1e6, bos_token_id=264,
        eos_token_id=266,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, float("norm" in name), 0.2)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1, eos_token_id=[266, 264]
    )
    model.save_pretrained(FOLDER, max_shard_size="60KB")
    write_tokenizer(FOLDER, tiny_config("qwen2", vocab_size=280))
    token_ids = random_tokens(1, NUM_TOKENS, 267)
    saved = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad():
        logits = saved.eval()(torch.tensor([token_ids])).logits[0]
    np.savez_compressed(FOLDER / "logits.npz", token_ids=np.array(token_ids, np.int32), logits=logits.to(torch.float32).numpy())
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
