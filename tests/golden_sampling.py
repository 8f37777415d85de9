"""Cases on fixed logits for which tests/golden/sampling_*.json hold what llama.cpp and transformers keep.

tools/make_sampling_goldens.py asks them; tests/unit/sampling/test_goldens.py holds hotloop against it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN_DIR = Path(__file__).parent / "golden"
VOCAB = 120

# Filters by name, applied in the order of docs/sampling.md after the temperature.
FILTERS: list[dict[str, float]] = [
    {"temperature": 0.3}, {"temperature": 2.5},
    {"top_n_sigma": 0.5}, {"top_n_sigma": 1.0}, {"top_n_sigma": 2.0, "temperature": 3.0},
    {"min_p": 0.02}, {"min_p": 0.3, "temperature": 2.0},
    {"top_k": 1}, {"top_k": 13},
    {"top_p": 0.3}, {"top_p": 0.9}, {"top_p": 0.97, "temperature": 1.7},
    {"typical_p": 0.2}, {"typical_p": 0.5}, {"typical_p": 0.95}, {"typical_p": 0.8, "temperature": 3.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05}, {"xtc_probability": 1.0, "xtc_threshold": 0.3},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "temperature": 2.0},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 2.0, "top_n_sigma": 1.5, "min_p": 0.02, "top_k": 30, "top_p": 0.9},
    {"temperature": 1.5, "min_p": 0.01, "top_p": 0.95, "typical_p": 0.7},
    {"temperature": 1.5, "top_k": 50, "typical_p": 0.9, "xtc_probability": 1.0, "xtc_threshold": 0.06},
    {
        "temperature": 1.3, "top_n_sigma": 2.5, "min_p": 0.01, "top_k": 60, "top_p": 0.98, "typical_p": 0.95,
        "xtc_probability": 1.0, "xtc_threshold": 0.04,
    },
]  # fmt: skip
NUM_ROWS = 3  # of logits for each of FILTERS

# repetition, frequency, presence; all with CONTEXT as the output.
PENALTIES = [(1.3, 0.0, 0.0), (0.8, 0.0, 0.0), (1.0, 0.4, 0.0), (1.0, 0.0, 0.7), (1.2, 0.3, -0.5)]
CONTEXT = [7, 3, 3, 99, 7, 3, 41, 7]

# Of SmolLM2's vocabulary: BREAKER holds a line break, the others do not.
DRY_IDS = [1000, 2000, 3000, 4000, 5000]
BREAKER = 198
DRY: list[dict[str, float]] = [
    {"dry_multiplier": 0.8}, {"dry_multiplier": 1.5, "dry_base": 1.2, "dry_allowed_length": 1},
    {"dry_multiplier": 0.5, "dry_base": 3.0, "dry_allowed_length": 4}, {"dry_multiplier": 1.0, "dry_base": 1.0},
]  # fmt: skip
MIROSTAT = [{"tau": 5.0, "eta": 0.1}, {"tau": 2.0, "eta": 0.5}, {"tau": 0.5, "eta": 1.0}]
NUM_MIROSTAT_STEPS = 12


def logits_of(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2.0, VOCAB).astype(np.float32)


def dry_contexts() -> list[list[int]]:
    """Random ones of few ids, so that much repeats; some with breakers."""
    rng = np.random.default_rng(1)
    contexts = [[DRY_IDS[int(i)] for i in rng.integers(0, n, size)] for n in (2, 3, 5) for size in (3, 20, 60, 200)]
    for context in contexts[::2]:
        for i in rng.integers(0, len(context), len(context) // 15):
            context[int(i)] = BREAKER
    return contexts


Golden = dict[str, Any]
