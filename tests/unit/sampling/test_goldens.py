"""What other engines keep of the same logits, with which probabilities: tests/golden/sampling_*.json."""

import json
from functools import cache

import numpy as np
import pytest

from golden_sampling import (
    BREAKER,
    CONTEXT,
    DRY,
    FILTERS,
    GOLDEN_DIR,
    MIROSTAT,
    NUM_ROWS,
    PENALTIES,
    VOCAB,
    Golden,
    dry_contexts,
    logits_of,
)
from hotloop import _native
from hotloop.sampling import definition
from hotloop.sampling.dry import Dry
from hotloop.sampling.filters import next_mirostat_mu, scale_logits
from hotloop.sampling.state import SamplerState
from hotloop.sampling_params import SamplingParams

ISA = _native.usable_isas()[0]
ENGINES = ["llama_cpp", "transformers"]


@cache
def golden(engine: str) -> Golden:
    data: Golden = json.loads((GOLDEN_DIR / f"sampling_{engine}.json").read_text())
    return data


def kept(logits: np.ndarray, params: _native.DrawParams, mu: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    return definition.kept(ISA, logits, scale_logits(logits, params.temperature), params, 0, mu)


def assert_kept(expected: Golden, ids: np.ndarray, weights: np.ndarray) -> None:
    assert ids.tolist() == expected["ids"]
    np.testing.assert_allclose(weights / weights.sum(), expected["probs"], rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("row", range(NUM_ROWS))
@pytest.mark.parametrize("index", range(len(FILTERS)), ids=[str(p) for p in FILTERS])
@pytest.mark.parametrize("engine", ENGINES)
def test_filters_keep_what_others_keep(engine: str, index: int, row: int) -> None:  # known fault B06
    expected = golden(engine)["filters"][index][row]
    if expected is None:
        assert engine == "transformers"  # has neither top_n_sigma nor xtc
        return
    state = SamplerState(SamplingParams(**FILTERS[index]), seed=0, prompt_token_ids=[], vocab_size=VOCAB)
    assert_kept(expected, *kept(logits_of(row), state.draw_params))


@pytest.mark.parametrize("index", range(len(PENALTIES)))
@pytest.mark.parametrize("engine", ENGINES)
def test_penalties(engine: str, index: int) -> None:
    expected = golden(engine)["penalties"][index]
    if expected is None:
        assert engine == "transformers"  # has no frequency and presence penalties
        return
    repetition, frequency, presence = PENALTIES[index]
    params = SamplingParams(
        repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence, logprobs=0
    )
    state = SamplerState(params, seed=0, prompt_token_ids=[], output_token_ids=CONTEXT, vocab_size=VOCAB)
    assert state.edits is not None
    np.testing.assert_allclose(definition.edited(logits_of(0), state.draw_params, state.edits), expected, rtol=1e-6)


@pytest.mark.parametrize("index", range(len(DRY)), ids=[str(p) for p in DRY])
def test_dry(index: int) -> None:
    params = SamplingParams(**DRY[index])  # type: ignore[arg-type]
    num_penalized = 0
    for context, expected in zip(dry_contexts(), golden("llama_cpp")["dry"][index], strict=True):
        dry = Dry(params.dry_multiplier, params.dry_base, params.dry_allowed_length, (((BREAKER,), ((),)),), context)
        ids, penalties = dry.penalties
        assert ids.tolist() == sorted(int(i) for i in expected)
        np.testing.assert_allclose(penalties, [expected[str(i)] for i in ids], rtol=1e-5)
        num_penalized += len(ids)
    assert num_penalized > 3


@pytest.mark.parametrize("index", range(len(MIROSTAT)))
def test_mirostat(index: int) -> None:
    params = _native.DrawParams(
        temperature=1.0, mirostat=True, mirostat_tau=MIROSTAT[index]["tau"], mirostat_eta=MIROSTAT[index]["eta"]
    )
    mu = 2 * params.mirostat_tau
    sizes = set()
    for step, expected in enumerate(golden("llama_cpp")["mirostat"][index]):
        ids, weights = kept(logits_of(100 + step), params, mu)
        assert_kept(expected, ids, weights)
        mu = next_mirostat_mu(ISA, params, mu, int(weights[ids == expected["drawn"]][0]), weights)
        sizes.add(len(ids))
    assert len(sizes) > 1
