"""A folder and a GGUF file of the same weights are the same model: keys, tensors, logits, bit for bit (known fault B90)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import CASES, GoldenCase
from hotloop.models.reference import reference_logits
from hotloop.models.registry import load_model_spec
from hotloop.quant.formats import dequantize
from hotloop.weights.gguf_writer import WritableTensor
from hotloop.weights.model_file import ModelFile
from hotloop.weights.open_model import open_model
from tiny_folders import CLASSES, stored, write_golden_folder, write_tiny_folder
from tiny_models import random_tokens, write_tiny_model

# llama-dynamic is a file whose context was stretched; a folder's context is never beyond where its scaling begins.
FOLDER_CASES = [case for case in CASES if case.architecture in CLASSES and case.name != "llama-dynamic"]


def as_gguf(path: Path, folder: ModelFile, case: GoldenCase) -> Path:
    """The case as a GGUF file. Llama 3's divisors are the folder's, which test_hf_rope.py compares with the converter's."""
    name = "rope_freqs.weight"
    divisors: dict[str, WritableTensor] = {}
    if name in folder.tensors:
        divisors[name] = ("F32", folder.tensors[name].shape, folder.read(name))
    return case.write(path, tensors=divisors)


@pytest.mark.parametrize("case", FOLDER_CASES, ids=lambda case: case.name)
def test_same_configuration_tensors_and_logits(tmp_path: Path, case: GoldenCase) -> None:
    with open_model(write_golden_folder(tmp_path / "folder", case, num_shards=2)) as folder:
        with open_model(as_gguf(tmp_path / "model.gguf", folder, case)) as gguf:
            assert load_model_spec(folder).config == load_model_spec(gguf).config
            assert folder.tensors.keys() == gguf.tensors.keys()
            for name, info in gguf.tensors.items():
                assert folder.tensors[name] == info
                assert (folder.read(name) == gguf.read(name)).all(), name
        expected = reference_logits(tmp_path / "model.gguf", case.token_ids)
        assert (reference_logits(folder, case.token_ids) == expected).all()


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "gpt2"])
def test_half_precision_stays_as_it_is(tmp_path: Path, architecture: str, dtype: str) -> None:
    write_tiny_folder(tmp_path / "f", architecture, dtype=dtype, vector_dtype="F32")
    write_tiny_model(tmp_path / "m.gguf", architecture, formats=dtype)
    with open_model(tmp_path / "f") as folder, open_model(tmp_path / "m.gguf") as gguf:
        assert {n: t for n, t in folder.tensors.items() if len(t.shape) == 2} == {
            n: t for n, t in gguf.tensors.items() if len(t.shape) == 2
        }
        ids = random_tokens(3, 20)
        assert (reference_logits(folder, ids) == reference_logits(gguf, ids)).all()


def test_half_precision_gains_are_shifted_in_float32(tmp_path: Path) -> None:
    """1 + w of a bf16 w: rounded to bf16 it would lose up to 8 bits of w."""
    w = np.array([2.0**-12, -0.375, 1.0, 0.0] * 16, np.float32)
    tensors = {"model.norm.weight": stored("BF16", w)}
    with open_model(write_tiny_folder(tmp_path / "f", "gemma3", dtype="BF16", tensors=tensors)) as folder:
        info = folder.tensors["output_norm.weight"]
        assert info.format == "F32"
        np.testing.assert_array_equal(folder.read("output_norm.weight").view("<f4"), np.float32(1) + w)
        assert load_model_spec(folder).config.architecture == "gemma3"


def test_rows_are_the_rows_of_the_whole(tmp_path: Path) -> None:
    """Whatever is changed on reading: any range of rows."""
    with open_model(write_tiny_folder(tmp_path / "f", "llama", qkv_bias=True, head_dim=48)) as folder:
        for name, info in folder.tensors.items():
            whole = folder.read(name).reshape(info.num_rows, info.row_bytes)
            for start, stop in ((0, 1), (0, info.num_rows), (7, 59), (47, 49), (info.num_rows - 1, info.num_rows)):
                if stop <= info.num_rows:
                    assert (folder.read_rows(name, start, stop) == whole[start:stop].reshape(-1)).all(), (name, start, stop)
            assert (folder.data(name) == folder.read(name)).all()
            location = folder.location(name)
            assert (location is None) == any(part in name for part in ("attn_q.", "attn_k.")), name


WRAPPED: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    "mm_tokens_per_image": 256,
}


@pytest.mark.parametrize("new", [False, True])
def test_the_text_part_of_a_model_with_a_vision_tower(tmp_path: Path, new: bool) -> None:
    import json

    folder = write_tiny_folder(tmp_path / "f", "gemma3", window=8)
    text = json.loads((folder / "config.json").read_text())
    del text["tie_word_embeddings"], text["architectures"]
    tensors = open_model(folder)
    from hotloop.weights.safetensors import SafetensorsFile
    from tiny_folders import write_json, write_weights

    file = SafetensorsFile.open(folder / "model.safetensors")

    def renamed(name: str) -> str:
        return name.replace("model.", "model.language_model.", 1) if new else f"language_model.{name}"

    contents = {renamed(n): (t.dtype, t.shape, t.read().tobytes()) for n, t in file.tensors.items()}
    contents["model.vision_tower.x.weight" if new else "vision_tower.x.weight"] = stored("F32", [1.0])
    contents["multi_modal_projector.mm_input_projection_weight"] = stored("F32", [[1.0]])
    wrapped = tmp_path / "w"
    write_tiny_folder(wrapped, "gemma3", window=8)
    write_weights(wrapped, contents)
    write_json(wrapped / "config.json", WRAPPED | {"text_config": text})
    ids = random_tokens(5, 24)
    with open_model(wrapped) as model:
        assert model.tensors.keys() == tensors.tensors.keys()
        assert (reference_logits(model, ids) == reference_logits(tensors, ids)).all()


def test_the_new_form_of_rope_parameters(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "llama-yarn")
    old = write_golden_folder(tmp_path / "old", case)
    parameters = {"rope_theta": case.config.rope_base, **case.hf_rope}
    new = write_golden_folder(
        tmp_path / "new", case, config={"rope_theta": None, "rope_scaling": None, "rope_parameters": parameters}
    )
    assert load_model_spec(open_model(new)).config == load_model_spec(open_model(old)).config
    gemma = next(case for case in CASES if case.name == "gemma3-linear")
    old = write_golden_folder(tmp_path / "old-gemma", gemma)
    sections = {
        "full_attention": {"rope_theta": gemma.config.rope_base, **gemma.hf_rope},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    new = write_golden_folder(
        tmp_path / "new-gemma", gemma, config={"rope_theta": None, "rope_scaling": None, "rope_parameters": sections}
    )
    assert load_model_spec(open_model(new)).config == load_model_spec(open_model(old)).config


def test_dequantized_values_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """q rows in the order of adjacent pairs, by hand."""
    rows = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    tensors = {"model.layers.0.self_attn.q_proj.weight": stored("F32", rows)}
    with open_model(write_tiny_folder(tmp_path / "f", tensors=tensors)) as folder:
        values = dequantize("F32", folder.read("blk.0.attn_q.weight"), (64, 64))
    for head in range(4):
        for i in range(8):
            for half in range(2):
                assert (values[16 * head + 2 * i + half] == rows[16 * head + 8 * half + i]).all()
