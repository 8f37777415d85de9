"""Hugging Face folders in the engine: the same bits as the GGUF file of the same weights, in this process and in its own."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import GREEDY, all_logits, assert_same_bits, make_runner
from golden_models import CASES
from hotloop import LLM, SamplingParams
from hotloop.config import EngineConfig
from hotloop.engine.fingerprint import system_fingerprint
from hotloop.engine.model_runner import ModelRunner
from hotloop.engine.serving import start_engine_process
from hotloop.errors import ModelFileError
from hotloop.ops import native
from hotloop.weights.open_model import open_model
from tiny_folders import CLASSES, write_golden_folder, write_json, write_tiny_folder
from tiny_models import random_tokens, write_tiny_model

# One of each class, and what is special on reading: biases and odd head sizes.
NAMES = (
    "llama-gqa-tied", "llama-bias-head-dim", "llama-window", "qwen2-gqa", "qwen3", "gemma3", "gemma2-gqa",
    "granite-mha-bias-tied", "phi3-long-gqa-tied", "smollm3-gqa-tied", "gpt2-tied", "starcoder2", "olmo2", "olmo3", "glm4",
)  # fmt: skip
FOLDER_CASES = [case for case in CASES if case.name in NAMES]


def folder_runner(path: Path) -> ModelRunner:
    with open_model(path) as model_file:
        return ModelRunner(model_file, EngineConfig(max_num_seqs=64))


@pytest.mark.parametrize("case", FOLDER_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_native_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Any, dtype: str) -> None:
    monkeypatch.setattr(native, "_CHUNK_BYTES", 1000)  # several chunks for every matrix that is changed on reading
    folder = write_golden_folder(tmp_path / "f", case, dtype=dtype, vector_dtype="F32", num_shards=2)
    gguf = case.write(tmp_path / "m.gguf", formats=dtype)
    expected = all_logits(make_runner(gguf), case.token_ids)
    assert_same_bits(all_logits(folder_runner(folder), case.token_ids, chunks=(5, 1, 20)), expected)


def test_cases_cover_the_classes() -> None:
    families = {case.name.partition("-")[0] for case in FOLDER_CASES}  # olmo3 is a class of its own here, mistral is llama's
    assert families == set(CLASSES) - {"mistral"}


def answers(llm: LLM) -> list[Any]:
    prompts = ["hello", "the thing on the street", "", random_tokens(7, 30)]
    params = SamplingParams(max_tokens=12, seed=5, ignore_eos=True, logprobs=2)
    outputs = [llm.generate([p], params)[0].outputs[0] for p in prompts if p]
    return [(o.text, o.token_ids, o.logprobs, o.finish_reason) for o in outputs]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_text_to_text(tmp_path: Path, architecture: str) -> None:
    folder = write_tiny_folder(tmp_path / "f", architecture)
    gguf = write_tiny_model(tmp_path / "m.gguf", architecture)
    a, b = LLM(folder), LLM(gguf)
    assert answers(a) == answers(b)
    messages = [{"role": "user", "content": "hello <|im_end|>"}]
    assert a.chat(messages, GREEDY)[0].outputs[0].token_ids == b.chat(messages, GREEDY)[0].outputs[0].token_ids


def test_an_engine_process_loads_a_folder(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "f", num_shards=2, dtype="BF16")
    engine = start_engine_process(folder, {}, watchdog_s=30.0)
    try:
        assert engine.client.info.vocab_size == 300
        assert engine.path == folder
    finally:
        engine.client.close()
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="1 of 2 shards are missing"):
        start_engine_process(folder, {}, watchdog_s=30.0)


def test_a_shard_that_is_cut_while_it_is_loaded(tmp_path: Path) -> None:
    """Matrices that are read as they lie, and those that are changed on reading."""
    for architecture in ("qwen2", "llama"):
        folder = write_tiny_folder(tmp_path / architecture, architecture)
        weights = folder / "model.safetensors"
        with open_model(folder) as model_file:
            os.truncate(weights, weights.stat().st_size - 200_000)
            with pytest.raises(ModelFileError, match=r"model\.layers\..* cannot be read any more: the file ends in it"):
                ModelRunner(model_file, EngineConfig())


def test_the_fingerprint_is_of_everything_that_answers_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    config = EngineConfig()
    folder = write_tiny_folder(tmp_path / "f", num_shards=2, generation={"top_k": 5})
    same = write_tiny_folder(tmp_path / "g", num_shards=2, generation={"top_k": 5})
    names = {system_fingerprint(folder, config), system_fingerprint(same, config)}
    assert len(names) == 1
    shard = folder / "model-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    names.add(system_fingerprint(folder, config))
    keys = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", keys | {"rms_norm_eps": 1e-5})
    names.add(system_fingerprint(folder, config))
    write_json(folder / "generation_config.json", {"eos_token_id": 5})
    names.add(system_fingerprint(folder, config))
    assert len(names) == 4


def effective(path: Path, asked: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    params = LLM(path, **options)._inputs.resolved(SamplingParams(**asked))
    return {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}


NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
RECOMMENDED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0.0, "top_k": 0}, {"temperature": 2.0, "top_p": 1.0, "repetition_penalty": 1.0, "min_p": 0.1}]
)
@pytest.mark.parametrize("generation", [None, {"temperature": 0.6}, RECOMMENDED | {"do_sample": True, "eos_token_id": [267]}])
def test_request_over_generation_config_over_neutral(tmp_path: Path, asked: Any, generation: Any) -> None:  # known fault B125
    path = write_tiny_folder(tmp_path / "f", generation=generation)
    known = {key: value for key, value in (generation or {}).items() if key in NEUTRAL}
    assert effective(path, asked) == NEUTRAL | known | asked
    assert effective(path, asked, recommended_sampling=False) == NEUTRAL | asked


def test_a_gguf_file_recommends_the_same(tmp_path: Path) -> None:
    keys = {"general.sampling.temp": np.float32(0.6), "general.sampling.top_k": 20, "general.sampling.top_p": np.float32(0.95)}
    path = write_tiny_model(tmp_path / "m.gguf", metadata=keys | {"general.sampling.penalty_repeat": np.float32(1.1)})
    assert effective(path, {}) == NEUTRAL | RECOMMENDED


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"top_k": 1.5}, "top_k is 1.5; it must be an integer"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": float("nan")}, "temperature is nan; it must be a number"),
        ({"top_p": 7}, "recommends is impossible: top_p"),
        ({"temperature": -1}, "recommends is impossible: temperature"),
    ],
)
def test_a_recommendation_that_no_request_could_have(tmp_path: Path, generation: Any, message: str) -> None:
    path = write_tiny_folder(tmp_path / "f", generation=generation)
    with pytest.raises(ModelFileError, match=message):
        LLM(path)


def test_every_end_token_of_the_configurations_ends_an_answer(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "f", generation={"eos_token_id": [40, 41]}, config={"eos_token_id": 42})
    assert {40, 41, 42, 266} <= set(LLM(path).tokenizer.eos_token_ids)
