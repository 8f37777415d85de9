"""Run hotloop against live oracles: a float64 forward pass and llama.cpp. See docs/oracles.md.

    python tools/oracles/compare.py MODEL.gguf ... --results DIR --llama-python PYTHON [--checks kl ...]

What the oracles said is kept in DIR/<model file stem>/ and used again; delete it to ask them again. Exit
status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from float64_forward import best_next_tokens
from float64_oracle import write_float64
from gguf_model import F32
from greedy_agreement import greedy_agreement, shared_tokens
from hotloop_adapter import Activations, KvDtype, hotloop_greedy, hotloop_logits
from metrics import Agreement, agreement, joined, negative_log_likelihoods

MAX_KL_F32 = 1e-5
MAX_KL_INT8 = 4e-3
MAX_KL_INT8_RATIO = 1.2
MAX_PERPLEXITY_CHANGE = 0.01
MODELLED_KV_DTYPES: dict[str, KvDtype] = {"numpy_int8": "f32", "numpy_int8_f16_kv": "f16"}


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under test and the folder of what the oracles said about it."""

    model: Path
    folder: Path
    llama_python: str

    def ask_llama_cpp(self, task: str, file: str) -> Path:
        """The file that a task of llama_cpp_oracle.py writes, made now if it is not there."""
        if not (self.folder / file).exists():
            script = Path(__file__).with_name("llama_cpp_oracle.py")
            arguments = [str(script), str(self.folder.parent), str(self.model), "--tasks", task]
            subprocess.run([self.llama_python, *arguments], check=True)
        return self.folder / file

    def ask_float64(self) -> tuple[list[list[int]], F32, dict[str, Any]]:
        """Token ids of the test sequences, their float64 logits, and float64.json; made now if not there."""
        sequences = json.loads(self.ask_llama_cpp("tokens", "logits_ids.json").read_text())
        if not (self.folder / "float64.json").exists():
            write_float64(self.model, self.folder)
        logits: F32 = np.load(self.folder / "logits_float64.npy", mmap_mode="r")
        report = json.loads((self.folder / "float64.json").read_text())
        return sequences[: len(report["positions_per_sequence"])], logits, report


def _verdict(passed: bool, text: str) -> bool:
    print(f"  {'pass' if passed else 'FAIL'}: {text}", flush=True)
    return passed


def check_kl(subject: Subject) -> bool:
    """Divergence from float64: f32 activations, and int8 activations beside the numpy model of them."""
    sequences, reference, report = subject.ask_float64()

    def distance(activations: Activations, kv_dtype: KvDtype) -> Agreement:
        parts, start = [], 0
        for ids in sequences:
            ours = hotloop_logits(subject.model, ids, activations=activations, kv_dtype=kv_dtype)
            parts.append(agreement(reference[start : start + len(ids)], ours))
            start += len(ids)
        return joined(parts)

    exact = distance("f32", "f32")
    passed = _verdict(exact.mean_kl < MAX_KL_F32, f"f32 activations: {exact} (< {MAX_KL_F32:g})")
    for name, kv_dtype in MODELLED_KV_DTYPES.items():
        modelled: float = report[name]["mean_kl"]
        ours = distance("int8", kv_dtype)
        limit = min(MAX_KL_INT8, MAX_KL_INT8_RATIO * modelled)
        text = f"int8 activations, {kv_dtype} KV: {ours}; numpy model {modelled:.3g} (<= {limit:.3g})"
        passed &= _verdict(ours.mean_kl <= limit, text)
    return passed


def check_perplexity(subject: Subject) -> bool:
    """Perplexity over the very ids llama.cpp scored, in the same windows."""
    windows = np.load(subject.ask_llama_cpp("tokens", "perplexity_ids.npy"))
    theirs = json.loads(subject.ask_llama_cpp("perplexity", "ppl_llamacpp.json").read_text())["perplexity"]
    nll: list[float] = []
    for window in windows:
        half = len(window) // 2
        logits = hotloop_logits(subject.model, window.tolist(), activations="int8", kv_dtype="f16")
        nll.extend(negative_log_likelihoods(logits[half:-1], window[half + 1 :]))
    ours = float(np.exp(np.mean(nll)))
    change = ours / theirs - 1
    text = f"perplexity {ours:.4f}, llama.cpp {theirs:.4f}: {change:+.2%}"
    counts = f"({windows.size} tokens, {len(nll)} scored)"
    return _verdict(abs(change) <= MAX_PERPLEXITY_CHANGE, f"{text} {counts}")


def check_greedy(subject: Subject) -> bool:
    """Greedy continuations beside llama.cpp's, and how far an exact engine would have followed llama.cpp."""
    subject.ask_llama_cpp("tokens", "prompts.json")
    entries = json.loads(subject.ask_llama_cpp("greedy", "greedy.json").read_text())
    prompts = [entry["prompt_token_ids"] for entry in entries]
    theirs = [entry["token_ids"] for entry in entries]
    file = subject.folder / "greedy_float64.json"
    if not file.exists():
        file.write_text(json.dumps(best_next_tokens(subject.model, prompts, theirs)))
    exact = shared_tokens(json.loads(file.read_text()), theirs)
    ours = [hotloop_greedy(subject.model, ids, len(out)) for ids, out in zip(prompts, theirs, strict=True)]
    report = greedy_agreement(subject.model, prompts, ours, theirs)
    print(f"  llama.cpp's tokens before it leaves the float64 model's greedy path: {exact:.1%}")
    return _verdict(report.passed, str(report).replace("\n", "\n  "))


CHECKS: dict[str, Callable[[Subject], bool]] = {
    "kl": check_kl,
    "perplexity": check_perplexity,
    "greedy": check_greedy,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--results", type=Path, default=Path("build/oracles"))
    parser.add_argument("--llama-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--checks", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    arguments = parser.parse_args()
    passed = True
    for model in arguments.models:
        print(model.stem, flush=True)
        for check in arguments.checks:
            passed &= CHECKS[check](Subject(model, arguments.results / model.stem, arguments.llama_python))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
