"""Which format each tensor of a quantized model gets."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from hotloop.config import QuantizationName
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.quantization import QUANTIZATIONS, ModelFacts, is_fallback, tensor_format

UNTIED = ModelFacts(num_layers=24, tied=False)
TIED = ModelFacts(num_layers=24, tied=True)
ROWS = (512, 1024)


def formats(name: str, *tensors: str, model: ModelFacts = UNTIED, shape: tuple[int, ...] = ROWS) -> list[str]:
    return [tensor_format(QUANTIZATIONS[name], f"{tensor}.weight", shape, model) for tensor in tensors]


def test_every_name_of_the_configuration_has_a_mixture() -> None:
    assert set(QUANTIZATIONS) == set(get_args(QuantizationName))
    assert QUANTIZATIONS["q4_k"].name == "q4_k_m"


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_vectors_and_small_tables_stay_as_exact_as_they_are(name: str) -> None:
    quantization = QUANTIZATIONS[name]
    for tensor, shape in (
        ("output_norm.weight", (1024,)),
        ("blk.0.attn_q.bias", (1024,)),
        ("position_embd.weight", ROWS),
        ("rope_factors_long.weight", (2, 64)),
        ("blk.3.ffn_gate_inp.weight", ROWS),
    ):
        assert tensor_format(quantization, tensor, shape, UNTIED) == "F32"
        assert not is_fallback(quantization, tensor, shape, UNTIED)


def test_the_matrix_that_makes_the_logits_has_six_bits() -> None:
    assert formats("q4_0", "output", "token_embd", "blk.0.attn_q") == ["Q6_K", "Q4_0", "Q4_0"]
    assert formats("q4_0", "token_embd", model=TIED) == ["Q6_K"]
    assert formats("q8_0", "output", "blk.0.attn_q") == ["Q8_0", "Q8_0"]
    assert formats("f16", "output", "blk.0.attn_q") == ["F16", "F16"]


def test_mixtures_of_k_quants() -> None:
    sensitive = [0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23]
    down = formats("q4_k_m", *(f"blk.{i}.ffn_down" for i in range(24)))
    assert [i for i, format in enumerate(down) if format == "Q6_K"] == sensitive
    assert formats("q5_k", "blk.5.attn_v", "blk.6.attn_v", "blk.5.attn_k") == ["Q6_K", "Q5_K", "Q5_K"]
    assert formats("q4_k_m", "blk.6.attn_qkv") == ["Q5_K"]
    few = formats("q4_k_s", "blk.3.attn_v", "blk.4.attn_v", "blk.2.ffn_down", "blk.3.ffn_down", "blk.0.attn_k")
    assert few == ["Q5_K", "Q4_K", "Q5_K", "Q4_K", "Q4_K"]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("q4_k_s", 896, "Q5_0"),
        ("q5_k_s", 896, "Q5_1"),
        ("q6_k", 896, "Q8_0"),
        ("q4_0", 48, "F16"),
        ("q4_k_s", 48, "F16"),
        ("bf16", 48, "BF16"),
    ],
)
def test_rows_that_do_not_fit(name: str, columns: int, expected: str) -> None:
    quantization, tensor, shape = QUANTIZATIONS[name], "blk.9.attn_q.weight", (64, columns)
    assert tensor_format(quantization, tensor, shape, UNTIED) == expected
    assert is_fallback(quantization, tensor, shape, UNTIED) == (name != "bf16")
    assert not is_fallback(quantization, tensor, (64, 1024), UNTIED)


@pytest.mark.parametrize(("model", "name"), [("smollm2-135m", "q4_1"), ("gemma3-270m", "q4_k_m")])
def test_the_mixture_of_files_that_llama_cpp_made(model: str, name: str, model_path: Callable[[str], Path]) -> None:
    with GGUFFile.open(model_path(model)) as file:
        layers = file.get_int(f"{file.get_str('general.architecture')}.block_count")
        facts = ModelFacts(layers, tied="output.weight" not in file.tensors)
        for tensor in file.tensors.values():
            assert tensor_format(QUANTIZATIONS[name], tensor.name, tensor.shape, facts) == tensor.format, tensor.name
        assert file.get_int("general.file_type") == QUANTIZATIONS[name].file_type
