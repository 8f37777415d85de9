"""The reference op set against logits that transformers computed (tests/golden/models)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden_models import CASES, COLUMN_STEP, GOLDEN_DIR, NUM_TOKENS, GoldenCase
from hotloop.models import reference
from hotloop.models.config import ModelConfig
from hotloop.models.reference import reference_logits
from hotloop.models.registry import Model, load_model_spec
from hotloop.models.rope import RopeConfig
from hotloop.ops.protocol import RopeStyle
from hotloop.weights.gguf_writer import WritableValue
from hotloop.weights.model_file import ModelFile

# transformers computes norms, rotations and softmax in float32 whatever the model's dtype: some 10 roundings
# of 2^-24 a layer, on values that grow at most threefold on the way to the logits.
TOLERANCE = 2.0**-24 * 10 * 3

SCHEDULES = {
    "whole": ([NUM_TOKENS], 16),
    "chunks": ([1, 7, 16, 3, 21], 4),
    "chunk-then-decode": ([20] + [1] * (NUM_TOKENS - 20), 8),
}


def golden_logits(case: GoldenCase) -> np.ndarray:
    stored = np.load(GOLDEN_DIR / f"{case.name}.npz")
    assert stored["token_ids"].tolist() == case.token_ids, (
        "the golden files are of another recipe: run the tool"
    )
    return stored["logits"]


def our_logits(path: Path, case: GoldenCase, schedule: str = "whole") -> np.ndarray:
    chunk_lengths, block_size = SCHEDULES[schedule]
    logits = reference_logits(
        path, case.token_ids, activations="f32", chunk_lengths=chunk_lengths, block_size=block_size
    )
    return logits[:, ::COLUMN_STEP]


def limit(case: GoldenCase, golden: np.ndarray) -> float:
    return TOLERANCE * case.config.num_layers * float(np.abs(golden).max())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_those_of_transformers(
    case: GoldenCase, schedule: str, tmp_path: Path
) -> None:  # known faults B90, B92
    golden = golden_logits(case)
    logits = our_logits(case.write(tmp_path / "m.gguf"), case, schedule)
    assert np.abs(logits - golden).max() <= limit(case, golden)


CHANGES = {
    "llama-linear": {"llama.rope.scaling.type": "none"},
    "llama-yarn": {"llama.rope.scaling.original_context_length": 64},
    "llama-window": {"llama.attention.sliding_window": 9},
    "qwen2-gqa": {"qwen2.rope.freq_base": 10000.0},
    "qwen2-yarn-tied": {"qwen2.rope.scaling.attn_factor": 1.1},
    "qwen3": {"qwen3.attention.scale": 0.25},
    "gemma3": {"gemma3.attention.sliding_window_pattern": 3},
    "gemma3-linear": {"gemma3.rope.freq_base_swa": 20000.0},
    "gpt2": {"gpt2.attention.layer_norm_epsilon": 0.001},
    "starcoder2": {"starcoder2.rope.freq_base": 20000.0},
    "starcoder2-window-mha-tied": {"starcoder2.attention.sliding_window": 9},
    "olmo2": {"olmo2.attention.layer_norm_rms_epsilon": 0.001},
    "olmo3": {"olmo2.attention.sliding_window_pattern": 3},
    "glm4": {"glm4.rope.dimension_count": 32},
    "llama-yarn-mscale": {"llama.rope.scaling.yarn_log_multiplier": 0.0},
    "llama-dynamic": {"llama.rope.scaling.type": "none"},
    "mistral-head-dim": {"llama.attention.sliding_window": 21},
    "gemma2-gqa": {"gemma2.attn_logit_softcapping": 0.0},
    "gemma2-mha-scalar": {"gemma2.attention.scale": 32**-0.5},
    "granite-gqa": {"granite.residual_scale": 1.0},
    "granite-mha-bias-tied": {"granite.rope.scaling.finetuned": False},
    "smollm3-mha-yarn": {"smollm3.rope.scaling.factor": 8.0},
    "phi3-long-gqa-tied": {"phi3.rope.dimension_count": 12, "phi3.context_length": 32},
    "phi3-short-window": {"phi3.attention.sliding_window": 0},
}
# Further keys, each of which makes a case another model.
MORE_CHANGES = (
    ("llama-yarn-mscale", {"llama.rope.scaling.yarn_truncate": True}),
    ("gemma2-gqa", {"gemma2.final_logit_softcapping": 0.0}),
    ("gemma2-gqa", {"gemma2.attention.sliding_window_pattern": 3}),
    ("granite-gqa", {"granite.embedding_scale": 1.0}),
    ("granite-gqa", {"granite.attention.scale": 0.25}),
    ("granite-gqa", {"granite.logit_scale": 1.0}),
    ("phi3-long-gqa-tied", {"phi3.rope.scaling.attn_factor": 1.0}),
    ("phi3-short-window", {"phi3.rope.scaling.attn_factor": 1.0}),
    ("phi3-short-window", {"phi3.context_length": 65}),
)


@pytest.mark.parametrize(("name", "change"), [*CHANGES.items(), *MORE_CHANGES])
def test_a_change_of_one_key_shows(name: str, change: dict[str, WritableValue], tmp_path: Path) -> None:  # known fault B92
    """The comparison above would notice a key that has no effect, or a slightly wrong one."""
    case = next(case for case in CASES if case.name == name)
    golden = golden_logits(case)
    metadata = {f"{case.architecture}.{key}": value for key, value in case.metadata.items()} | change
    logits = our_logits(case.write(tmp_path / "m.gguf", metadata=metadata), case)
    assert np.abs(logits - golden).max() > 100 * limit(case, golden)


def rope_everywhere(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=(config.layers[0],) * config.num_layers)


def other_layers_slide(config: ModelConfig) -> ModelConfig:
    return replace(config, layers=config.layers[1:] + config.layers[:1])


def pairs_the_other_way(config: ModelConfig) -> ModelConfig:
    def turned(rope: RopeConfig | None) -> RopeConfig | None:
        styles: dict[RopeStyle, RopeStyle] = {"interleaved": "half_split", "half_split": "interleaved"}
        return rope and replace(rope, style=styles[rope.style])

    return replace(config, layers=tuple(replace(layer, rope=turned(layer.rope)) for layer in config.layers))


QUIRKS: tuple[tuple[str, Callable[[ModelConfig], ModelConfig]], ...] = (
    ("gemma2-gqa", lambda config: replace(config, embedding_scale=1.0)),
    ("gemma2-gqa", lambda config: replace(config, activation="silu")),
    ("gemma2-gqa", other_layers_slide),
    ("gemma2-mha-scalar", pairs_the_other_way),
    ("granite-gqa", pairs_the_other_way),
    ("smollm3-gqa-tied", rope_everywhere),
    ("smollm3-mha-yarn", pairs_the_other_way),
    ("phi3-mha", pairs_the_other_way),
)


@pytest.mark.parametrize(("name", "drop"), QUIRKS)
def test_a_quirk_that_no_key_states_shows(
    name: str, drop: Callable[[ModelConfig], ModelConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in CASES if case.name == name)
    golden = golden_logits(case)

    def load(file: ModelFile) -> Model:
        spec = load_model_spec(file)
        return replace(spec, config=drop(spec.config))

    monkeypatch.setattr(reference, "load_model_spec", load)
    logits = our_logits(case.write(tmp_path / "m.gguf"), case)
    assert np.abs(logits - golden).max() > 100 * limit(case, golden)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.sets(st.integers(1, NUM_TOKENS - 1)),
    block_size=st.sampled_from([1, 4, 8, 16, 64]),
    name=st.sampled_from(["llama-gqa-tied", "gemma3"]),
)
def test_any_chunks_and_block_size_give_the_same_logits(
    cuts: set[int], block_size: int, name: str, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == name)
    path = case.write(tmp_path / "m.gguf")
    ends = [*sorted(cuts), NUM_TOKENS]
    lengths = [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    chunked = reference_logits(path, case.token_ids, chunk_lengths=lengths, block_size=block_size)
    whole = reference_logits(path, case.token_ids)
    np.testing.assert_allclose(chunked, whole, rtol=0, atol=1e-5)


def test_stopping_early_is_a_shorter_model(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "llama-bias-head-dim")
    path = case.write(tmp_path / "m.gguf")
    shorter = case.write(tmp_path / "short.gguf", num_layers=2)
    early = reference_logits(path, case.token_ids, layers=range(2))
    np.testing.assert_array_equal(early, reference_logits(shorter, case.token_ids))


@pytest.mark.parametrize("layers", [range(0), range(1, 3), range(0, 3, 2), range(4)])
def test_a_layer_range_that_is_no_prefix_is_refused(layers: range, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "llama-bias-head-dim")
    path = case.write(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match=r"range\(0, n\)"):
        reference_logits(path, case.token_ids, layers=layers)


def test_hidden_states_are_what_the_head_sees(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "gemma3")
    path = case.write(tmp_path / "m.gguf")
    hidden = reference_logits(path, case.token_ids, activations="f32", output="hidden_states")
    assert hidden.shape == (NUM_TOKENS, case.config.hidden_size)
    embedding = np.asarray(reference_table(path, case.config.vocab_size, case.config.hidden_size), np.float64)
    golden = golden_logits(case)
    assert np.abs((hidden @ embedding.T)[:, ::COLUMN_STEP] - golden).max() <= limit(case, golden)


def reference_table(path: Path, rows: int, cols: int) -> np.ndarray:
    from hotloop.ops.reference import ReferenceWeights
    from hotloop.weights.gguf import GGUFFile

    return ReferenceWeights(GGUFFile.open(path)).matrix("token_embd.weight", rows, cols).values(slice(None))
