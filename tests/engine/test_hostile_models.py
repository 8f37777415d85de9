"""Files that are well-formed GGUF and absurd models: an error that is hotloop's own, or a model that runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import GREEDY
from hotloop import LLM
from hotloop.errors import HotloopError
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import WritableValue
from tiny_models import write_tiny_model


def absurd_values(value: Any) -> list[WritableValue | None]:
    """Values that a hostile file may hold in the place of this one: absent, of another type, on and over the edges."""
    if isinstance(value, bool):
        return [None, 3, "false"]
    if isinstance(value, int):
        return [None, 0, -1, 3, 7, 1000, 2**31 - 1, 2**63 - 1, "1", 1.5, True]
    if isinstance(value, float):
        return [None, 0.0, -1.0, float("nan"), float("inf"), 1e-45, 3e38, "1", 3]
    if isinstance(value, str):
        return [None, "", "\0", "x" * 100_000, 3, ["x"]]
    if isinstance(value, list):
        return [None, [], value[:-1], value[::-1], ["a"] * len(value), [""] * len(value), "x"]
    return [
        None, value[:0], value[:-1], value - 100, np.zeros_like(value), np.full_like(value, 2**30),
        np.full(len(value), np.nan, np.float32), "x",
    ]  # fmt: skip


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "granite"])
def test_any_value_of_any_key(architecture: str, tmp_path: Path) -> None:  # known fault B87
    """Whatever escapes but a HotloopError fails the test: a traceback, a hang, a crash."""
    with GGUFFile.open(write_tiny_model(tmp_path / "good.gguf", architecture)) as good:
        metadata = dict(good.metadata)
    refused, ran = [], 0
    for key, value in metadata.items():
        for absurd in absurd_values(value):
            path = write_tiny_model(tmp_path / "m.gguf", architecture, metadata={key: absurd})
            try:
                llm = LLM(path, kv_cache_memory_bytes=1 << 20, threads=1)
                llm.generate("hello", GREEDY)
                ran += 1
                llm.chat([{"role": "user", "content": "hi"}], GREEDY)
            except HotloopError as error:
                refused.append(str(error))
    assert ran > 20
    assert len(refused) > 100
    assert max(map(len, refused)) < 10_000  # the longest names all missing tensors, none quotes a long text


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["output_norm.weight", "blk.0.attn_norm.weight", "token_embd.weight"])
def test_weights_that_are_no_numbers_end_in_an_error(name: str, value: float, tmp_path: Path) -> None:
    shape = (300, 64) if name == "token_embd.weight" else (64,)
    tensor = ("F32", shape, np.full(shape, value, np.float32))
    llm = LLM(write_tiny_model(tmp_path / "m.gguf", tensors={name: tensor}))
    with pytest.raises(HotloopError, match="position 4 have no finite maximum"):
        llm.generate("hello", GREEDY)


def test_values_that_a_kv_dtype_does_not_hold(tmp_path: Path) -> None:
    """An error that names the dtype that does: a smaller range is no reason to refuse the model."""
    rows = np.full((32, 64), 1e6, np.float32)
    path = write_tiny_model(tmp_path / "m.gguf", tensors={"blk.0.attn_v.weight": ("F32", rows.shape, rows)})
    with pytest.raises(HotloopError, match="too large for the KV cache, and kv_dtype f32 holds them"):
        LLM(path).generate("hello", GREEDY)
    assert LLM(path, kv_dtype="f32").generate("hello", GREEDY)[0].outputs[0].finish_reason == "length"
