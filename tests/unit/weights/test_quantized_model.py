"""A model that is quantized as it is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.quant.formats import dequantize, quantize
from hotloop.weights import quantized_model
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.quantization import QUANTIZATIONS
from hotloop.weights.quantized_model import QuantizedModel, open_quantized
from tiny_models import write_tiny_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(
        tmp_path / "tiny.gguf", "qwen2", formats={"ffn_down": "F16", "attn_v": "F32", "*": "BF16"}, hidden_size=256,
        head_dim=64, intermediate_size=512,
    )  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_every_tensor_is_what_the_definition_makes_of_it(name: str, path: Path) -> None:
    with open_quantized(path, name) as model, GGUFFile.open(path) as source:
        assert list(model.tensors) == list(source.tensors)
        for info in model.tensors.values():
            before = source.tensors[info.name]
            values = dequantize(before.format, source.read(info.name), before.shape)
            np.testing.assert_array_equal(model.read(info.name), quantize(info.format, values))
            assert info.nbytes == model.read(info.name).nbytes


def test_rows_are_the_rows_of_the_whole_in_chunks_of_any_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_quantized(path, "q4_k", threads=1) as model:
        whole = model.read("token_embd.weight")
        row_bytes = model.tensors["token_embd.weight"].row_bytes
        monkeypatch.setattr(quantized_model, "_CHUNK_BYTES", 5 * 512)
        np.testing.assert_array_equal(model.read("token_embd.weight"), whole)
        np.testing.assert_array_equal(
            model.read_rows("token_embd.weight", 7, 20), whole[7 * row_bytes : 20 * row_bytes]
        )


def test_what_stays_as_it_is_is_read_in_place(path: Path) -> None:
    with open_quantized(path, "bf16") as model, GGUFFile.open(path) as source:
        assert model.location("token_embd.weight") is not None
        assert model.location("blk.0.ffn_down.weight") is None
        np.testing.assert_array_equal(model.read("token_embd.weight"), source.read("token_embd.weight"))


def test_metadata_say_what_it_is(path: Path) -> None:
    with open_quantized(path, "q5_k_m") as model, GGUFFile.open(path) as source:
        changed = {"general.file_type": 17, "general.quantization_version": 2}
        assert model.metadata.keys() == source.metadata.keys() | changed.keys()
        assert {key: model.metadata[key] for key in changed} == changed
        assert model.get_str("tokenizer.chat_template") == source.get_str("tokenizer.chat_template")


def test_progress_counts_the_bytes_of_the_source(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_quantized(path, "q8_0", progress=lambda *done: seen.append(done)) as model:
        for name in model.tensors:
            model.read(name)
        changed = [i.nbytes for i in model.source.tensors.values() if len(i.shape) == 2]  # type: ignore[attr-defined]
    assert [done for done, _ in seen] == np.cumsum(changed).tolist()
    assert {total for _, total in seen} == {sum(changed)}


def test_rows_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "narrow.gguf", "llama", formats="F16")  # rows of 64 and 96
    with GGUFFile.open(path) as source:
        model = QuantizedModel(source, "q4_k")
        assert set(model.fallbacks) == {name for name in model.tensors if "norm" not in name}
        assert model.tensors["blk.0.attn_q.weight"].format == "Q5_0"
        assert model.tensors["output.weight"].format == "Q8_0"
        assert QuantizedModel(source, "q8_0").fallbacks == []


def test_an_unknown_name_is_refused(path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="'q3_q' is unknown; choose one of f32, f16, bf16, q8_0"):
        open_quantized(path, "q3_q")


def test_what_is_quantized_already_is_refused_unless_forced(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "quantized.gguf", "llama", formats={"attn_q": "Q8_0", "*": "BF16"})
    with pytest.raises(
        ModelFileError, match=r"quantized already \('blk.0.attn_q.weight' is Q8_0\).*--allow-requantize"
    ):
        open_quantized(path, "q4_0")
    with GGUFFile.open(path) as source:
        model = QuantizedModel(source, "q4_0", requantize=True)
        shape = source.tensors["blk.0.attn_q.weight"].shape
        values = dequantize("Q8_0", source.read("blk.0.attn_q.weight"), shape)
        np.testing.assert_array_equal(model.read("blk.0.attn_q.weight"), quantize("Q4_0", values))
        # Tensors that have the wanted format already are no second quantization.
        assert QuantizedModel(source, "q8_0").location("blk.0.attn_q.weight") is not None


@pytest.mark.parametrize(
    ("value", "format", "why"),
    [
        (np.nan, "BF16", "row 3, column 5 is infinite or no number; the file is damaged"),
        (-np.inf, "F16", "row 3, column 5 is infinite or no number"),
        (3e38, "F32", "row 3, column 0 is too large for Q4_0; choose another type, such as bf16"),
    ],
)
def test_weights_that_cannot_be_quantized_are_named(
    value: float, format: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_model, "_CHUNK_BYTES", 1)  # a row at a time
    weights = np.zeros((64, 64), np.float32)
    weights[3, 5] = value
    bad: dict[str, Any] = {"blk.1.attn_output.weight": (format, (64, 64), quantize(format, weights))}
    path = write_tiny_model(tmp_path / "bad.gguf", "llama", formats="BF16", tensors=bad)
    message = f"'blk.1.attn_output.weight' cannot be quantized: {why}"
    with open_quantized(path, "q4_0") as model, pytest.raises(ModelFileError, match=message):
        model.read("blk.1.attn_output.weight")


def test_a_damaged_gain_is_named(tmp_path: Path) -> None:
    gains: dict[str, Any] = {"output_norm.weight": ("F16", (64,), np.full(64, np.inf, np.float16).view(np.uint8))}
    path = write_tiny_model(tmp_path / "bad.gguf", "llama", formats="BF16", tensors=gains)
    with (
        open_quantized(path, "q8_0") as model,
        pytest.raises(ModelFileError, match=r"output_norm.weight.*row 0, column 0"),
    ):
        model.read("output_norm.weight")
