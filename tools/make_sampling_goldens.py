"""Ask other engines what their samplers keep of fixed logits: `python tools/make_sampling_goldens.py llama_cpp|transformers`.

llama_cpp needs llama-cpp-python and --vocabulary, SmolLM2's GGUF (its tokens, for DRY's sequence breakers); transformers needs
torch. Each writes tests/golden/sampling_<name>.json. Samplers run in the order of docs/sampling.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from golden_sampling import (
    BREAKER,
    CONTEXT,
    DRY,
    DRY_IDS,
    FILTERS,
    GOLDEN_DIR,
    MIROSTAT,
    NUM_MIROSTAT_STEPS,
    NUM_ROWS,
    PENALTIES,
    Golden,
    dry_contexts,
    logits_of,
)


def kept_of(pairs: Sequence[tuple[int, float]]) -> Golden:
    """(id, logit) of what is left, as ids, ascending, and their probabilities."""
    pairs = sorted(pair for pair in pairs if pair[1] > -np.inf)
    logits = np.array([logit for _, logit in pairs], np.float64)
    probs = np.exp(logits - logits.max())
    return {"ids": [i for i, _ in pairs], "probs": [float(f"{p:.6g}") for p in probs / probs.sum()]}


def ask_llama_cpp(vocabulary: Path) -> Golden:
    import llama_cpp

    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(vocabulary).encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(model)

    class Candidates:
        def __init__(self, ids: Sequence[int], logits: Sequence[float]) -> None:
            self.data = (llama_cpp.llama_token_data * len(ids))(
                *((i, float(x), 0.0) for i, x in zip(ids, logits, strict=True))
            )
            self.array = llama_cpp.llama_token_data_array(self.data, len(ids), -1, False)

        def apply(self, sampler: Any) -> None:
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(self.array))

        def pairs(self) -> list[tuple[int, float]]:
            return [(self.array.data[i].id, self.array.data[i].logit) for i in range(self.array.size)]

    def samplers(p: dict[str, float]) -> list[Any]:
        made = [llama_cpp.llama_sampler_init_temp(p.get("temperature", 1.0))]
        if "top_n_sigma" in p:
            made.append(llama_cpp.llama_sampler_init_top_n_sigma(p["top_n_sigma"]))
        if "min_p" in p:
            made.append(llama_cpp.llama_sampler_init_min_p(p["min_p"], 1))
        if "top_k" in p:
            made.append(llama_cpp.llama_sampler_init_top_k(int(p["top_k"])))
        if "top_p" in p:
            made.append(llama_cpp.llama_sampler_init_top_p(p["top_p"], 1))
        if "typical_p" in p:
            made.append(llama_cpp.llama_sampler_init_typical(p["typical_p"], 1))
        if "xtc_probability" in p:
            made.append(llama_cpp.llama_sampler_init_xtc(p["xtc_probability"], p["xtc_threshold"], 1, 0))
        return made

    def filtered(p: dict[str, float], row: int) -> Golden:
        logits = logits_of(row)
        candidates = Candidates(range(len(logits)), logits.tolist())
        for sampler in samplers(p):
            candidates.apply(sampler)
        return kept_of(candidates.pairs())

    def penalized(repetition: float, frequency: float, presence: float) -> list[float]:
        logits = logits_of(0)
        sampler = llama_cpp.llama_sampler_init_penalties(len(logits), 64, repetition, frequency, presence)
        for token_id in CONTEXT:
            llama_cpp.llama_sampler_accept(sampler, token_id)
        candidates = Candidates(range(len(logits)), logits.tolist())
        candidates.apply(sampler)
        return [x for _, x in sorted(candidates.pairs())]

    def dry(p: dict[str, float], context: list[int]) -> dict[int, float]:
        breakers = (ctypes.c_char_p * 1)(b"\n")
        sampler = llama_cpp.llama_sampler_init_dry(
            vocab, p["dry_multiplier"], p.get("dry_base", 1.75), int(p.get("dry_allowed_length", 2)), 1000, breakers, 1
        )
        for token_id in context:
            llama_cpp.llama_sampler_accept(sampler, token_id)
        ids = [BREAKER, *DRY_IDS]
        candidates = Candidates(ids, [0.0] * len(ids))
        candidates.apply(sampler)
        return {i: float(f"{-x:.6g}") for i, x in candidates.pairs() if x != 0}

    def mirostat(tau: float, eta: float) -> list[Golden]:
        sampler = llama_cpp.llama_sampler_init_mirostat_v2(5, tau, eta)
        steps = []
        for step in range(NUM_MIROSTAT_STEPS):
            logits = logits_of(100 + step)
            candidates = Candidates(range(len(logits)), logits.tolist())
            candidates.apply(sampler)
            drawn = candidates.array.data[candidates.array.selected].id
            steps.append({**kept_of(candidates.pairs()), "drawn": drawn})
        return steps

    return {
        "filters": [[filtered(p, row) for row in range(NUM_ROWS)] for p in FILTERS],
        "penalties": [penalized(*p) for p in PENALTIES],
        "dry": [[dry(p, context) for context in dry_contexts()] for p in DRY],
        "mirostat": [mirostat(**p) for p in MIROSTAT],
    }


def ask_transformers() -> Golden:
    import torch
    from transformers.generation import logits_process as lp

    def filtered(p: dict[str, float], row: int) -> Golden | None:
        if p.keys() & {"top_n_sigma", "xtc_probability"}:
            return None  # unknown there
        scores = torch.from_numpy(logits_of(row))[None]
        made: list[Any] = [lp.TemperatureLogitsWarper(p.get("temperature", 1.0))]
        if "min_p" in p:
            made.append(lp.MinPLogitsWarper(p["min_p"]))
        if "top_k" in p:
            made.append(lp.TopKLogitsWarper(int(p["top_k"])))
        if "top_p" in p:
            made.append(lp.TopPLogitsWarper(p["top_p"]))
        if "typical_p" in p:
            made.append(lp.TypicalLogitsWarper(p["typical_p"]))
        for warper in made:
            scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
        return kept_of(list(enumerate(scores[0].tolist())))

    def penalized(repetition: float, frequency: float, presence: float) -> list[float] | None:
        if frequency or presence:
            return None
        scores = lp.RepetitionPenaltyLogitsProcessor(repetition)(
            torch.tensor([CONTEXT]), torch.from_numpy(logits_of(0))[None]
        )
        return [float(x) for x in scores[0]]

    return {
        "filters": [[filtered(p, row) for row in range(NUM_ROWS)] for p in FILTERS],
        "penalties": [penalized(*p) for p in PENALTIES],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["llama_cpp", "transformers"])
    parser.add_argument("--vocabulary", type=Path)
    args = parser.parse_args()
    golden = ask_llama_cpp(args.vocabulary) if args.engine == "llama_cpp" else ask_transformers()
    path = GOLDEN_DIR / f"sampling_{args.engine}.json"
    path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
