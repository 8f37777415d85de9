"""Requests with parameters of all kinds at once, as chance has it; the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.jobs import GRAMMAR, SCHEMA
from hotloop import SamplingParams, StructuredOutputsParams
from hotloop.engine.inputs import Prompt
from tiny_models import random_tokens

Choose: TypeAlias = Callable[[random.Random], Any]

FORMS = [
    SCHEMA, GRAMMAR, StructuredOutputsParams(json_object=True), StructuredOutputsParams(choice=["yes", "no", "not at all"]),
    StructuredOutputsParams(regex="[a-f]{3}( the)* end"),
    StructuredOutputsParams(json={"type": "array", "items": {"type": "string"}}, finish_within=15),
    StructuredOutputsParams(
        json={"type": "array", "items": {"enum": ["the", 1, None]}, "maxItems": 5}, disable_any_whitespace=True
    ),
]  # fmt: skip


def prefer_another(output_token_ids: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """A processor of a request's own: less likely what came last."""
    if output_token_ids:
        logits[output_token_ids[-1]] -= 2.0
    return logits


def one_of(*values: Any) -> Choose:
    return lambda rng: rng.choice(values)


# How likely each is to be given, and its values. Filters and mirostat exclude each other.
FILTERS: dict[str, tuple[float, Choose]] = {
    "top_k": (0.4, one_of(-1, 0, 1, 5, 40, 10**6)), "top_p": (0.4, one_of(0.1, 0.7, 0.99)),
    "min_p": (0.3, one_of(0.0, 0.01, 0.2)),
    "typical_p": (0.2, one_of(0.3, 0.9)), "top_n_sigma": (0.2, one_of(-1, 0.5, 2.0)),
    "xtc_probability": (0.2, one_of(0.5, 1.0)), "xtc_threshold": (0.2, one_of(0.001, 0.05)),
}  # fmt: skip
MIROSTAT: dict[str, tuple[float, Choose]] = {
    "mirostat": (1.0, one_of(2)), "mirostat_tau": (0.7, one_of(0.5, 3.0, 8.0)), "mirostat_eta": (0.5, one_of(0.0, 0.5, 1.0)),
}  # fmt: skip
OTHERS: dict[str, tuple[float, Choose]] = {
    "temperature": (0.9, one_of(0, 1e-30, 0.3, 0.8, 1.0, 1.5, 100.0)),
    "repetition_penalty": (0.3, one_of(0.8, 1.3)),
    "presence_penalty": (0.3, one_of(-1.0, 0.5, 2.0)),
    "frequency_penalty": (0.3, one_of(-0.5, 0.3, 2.0)),
    "dry_multiplier": (0.3, one_of(0.8, 3.0)),
    "dry_base": (0.2, one_of(1.0, 2.0)),
    "dry_allowed_length": (0.2, one_of(1, 3)),
    "dry_sequence_breakers": (0.2, one_of((), ("the", "e"))),
    "logit_bias": (0.3, one_of({7: 3.0, 9: -100.0}, {"101": 5, "10": -5}, {256: 2.0, 264: 4.0})),
    "allowed_token_ids": (0.1, lambda rng: rng.sample(range(32, 260), 40)),
    "bad_words": (0.3, one_of(("a", "the"), ("the e",), ("x", "y", "z"))),
    "n": (0.3, one_of(1, 2, 3)),
    "seed": (1.0, lambda rng: rng.randrange(-(2**63), 2**64)),
    "max_tokens": (1.0, lambda rng: rng.randint(1, 24)),
    "min_tokens": (0.3, lambda rng: rng.randint(0, 8)),
    "stop": (0.3, one_of("e", ["the", "\x00", "zz"], [" ", "q1"])),
    "include_stop_str_in_output": (0.3, one_of(True)),
    "stop_token_ids": (0.3, lambda rng: rng.sample(range(300), 8)),
    "ignore_eos": (0.3, one_of(True)),
    "skip_special_tokens": (0.2, one_of(False)),
    "truncate_prompt_tokens": (0.2, one_of(-1, 1, 7, 30)),
    "logprobs": (0.7, one_of(0, 1, 5, 20)),
    "logprobs_mode": (0.4, one_of("raw", "processed")),
    "prompt_logprobs": (0.3, one_of(0, 2)),
    "structured_outputs": (0.35, one_of(*FORMS)),
    "logits_processors": (0.1, one_of((prefer_another,))),
}


def mixed_params(seed: int) -> SamplingParams:
    rng = random.Random(seed)
    chosen = OTHERS | (MIROSTAT if rng.random() < 0.15 else FILTERS)
    given = {name: choose(rng) for name, (likely, choose) in chosen.items() if rng.random() < likely}
    given["min_tokens"] = min(given.get("min_tokens", 0), given["max_tokens"])
    return SamplingParams(**given)


def mixed_prompt(seed: int, context: int) -> Prompt:
    """Text or ids, half of them with a beginning that others share."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        return "the x y " * rng.randint(1, 8)
    beginning = random_tokens(99, 48)[: rng.choice((0, 0, 16, 33, 48))]
    return beginning + random_tokens(seed, rng.randint(1, context // 2))
