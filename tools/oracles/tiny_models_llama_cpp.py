"""Tiny golden models in llama.cpp: an independent check of metadata keys, tensor names and layouts.

    python tools/oracles/tiny_models_llama_cpp.py [CASE ...]

Runs in an environment that has `llama-cpp-python` (docs/oracles.md). Each case of tests/golden_models.py is written as a GGUF
file, loaded by llama.cpp, and compared with the logits of transformers; KV and activations are float32. A line per case: the
largest difference over the largest logit. Exits with 1 if a case beyond those listed here differs by more than 1 %.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from llama_cpp_oracle import GGML_TYPE_F32, all_logits, load

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from golden_models import CASES, COLUMN_STEP, GOLDEN_DIR, GoldenCase  # noqa: E402
from hotloop.weights.gguf_writer import WritableValue  # noqa: E402

LIMIT = 0.01
# What llama.cpp computes otherwise than transformers, or not at all.
SKIPPED = {
    "llama-dynamic": "rope.scaling.type dynamic is not in its list",
    "smollm3-mha-yarn": "smollm3 has no bias of the attention output",
    "starcoder2-no-bias": "the biases of starcoder2 are required",
    "olmo2-mha-tied": "the output matrix of olmo2 is required",
}
DIFFERENT = {
    "qwen2-yarn-tied": "yarn_beta_fast and yarn_beta_slow are read for some architectures only",
    "llama-window": "windows of llama models are ignored",
    "mistral-head-dim": "windows of llama models are ignored",
    "llama-yarn-mscale": "yarn_log_multiplier is read for some architectures only, yarn_truncate for none",
    "gemma2-mha-scalar": "attention.scale of gemma2 is ignored",
    "starcoder2-window-mha-tied": "windows of starcoder2 models are ignored",
    "phi3-short-window": "windows of phi3 models are ignored; the context is at least 256, which asks for long factors",
}


def relative_difference(case: GoldenCase, directory: Path) -> float:
    metadata: dict[str, WritableValue] = {f"{case.architecture}.{key}": value for key, value in case.metadata.items()}
    metadata["general.name"] = "tiny"  # of a model named phi3 it asks for some tokens
    path = case.write(directory / f"{case.name}.gguf", metadata=metadata)
    llm = load(path, context=case.config.context_length, all_logits=True, kv_type=GGML_TYPE_F32)
    logits = all_logits(llm, case.token_ids)[:, ::COLUMN_STEP]
    golden = np.load(GOLDEN_DIR / f"{case.name}.npz")["logits"]
    return float(np.abs(logits - golden).max() / np.abs(golden).max())


def main() -> int:
    chosen = [case for case in CASES if len(sys.argv) == 1 or case.name in sys.argv[1:]]
    failed = []
    for case in chosen:
        if case.name in SKIPPED:
            print(f"{case.name:28} skipped: {SKIPPED[case.name]}")
            continue
        with tempfile.TemporaryDirectory() as directory:
            difference = relative_difference(case, Path(directory))
        remark = DIFFERENT.get(case.name, "")
        if difference > LIMIT and not remark:
            failed.append(case.name)
        print(f"{case.name:28} {difference:.1e}  {'' if difference <= LIMIT else 'differs'} {remark}", flush=True)
    if failed:
        print("differ:", ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
