"""GPTQ, AWQ and FP8 folders: what is loaded is exactly what their definitions say, or is refused with the reason."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.models.reference import reference_logits
from hotloop.models.registry import load_model_spec
from hotloop.quant.formats import dequantize
from hotloop.quant.pack_codes import CODE_RANGES, pack_codes
from hotloop.weights.hf.fp8 import E4M3_VALUES
from hotloop.weights.hf.json_files import read_json
from hotloop.weights.model_file import ModelFile
from hotloop.weights.open_model import open_model
from tiny_folders import Stored, stored, write_json, write_tiny_folder
from tiny_models import random_tokens

LAYER = "model.layers.0.mlp.gate_proj"  # 96 outputs, 64 inputs
ROWS, COLUMNS = 96, 64
Q_PROJ = "model.layers.1.self_attn.q_proj"  # 64 x 64, whose rows are permuted


def ints(values: NDArray[Any]) -> Stored:
    return "I32", values.shape, values.astype(np.uint32).astype("<u4").tobytes()


def gptq(codes: NDArray[np.int64], zeros: NDArray[np.int64], scales: NDArray[np.float32], bits: int = 4) -> dict[str, Stored]:
    """Packed as AutoGPTQ packs. codes: [inputs, outputs]; zeros: [groups, outputs], as used; scales: [groups, outputs]."""
    per_word = 32 // bits
    qweight = np.zeros((len(codes) // per_word, codes.shape[1]), np.int64)
    for i in range(len(codes)):
        qweight[i // per_word] |= codes[i] << bits * (i % per_word)
    qzeros = np.zeros((len(zeros), zeros.shape[1] // per_word), np.int64)
    for j in range(zeros.shape[1]):
        qzeros[:, j // per_word] |= (zeros[:, j] - 1) << bits * (j % per_word)
    return {"qweight": ints(qweight), "qzeros": ints(qzeros), "scales": stored("F16", scales)}


def awq(codes: NDArray[np.int64], zeros: NDArray[np.int64], scales: NDArray[np.float32]) -> dict[str, Stored]:
    """Packed as AutoAWQ packs. Arguments as of `gptq`."""
    def packed(values: NDArray[np.int64]) -> Stored:
        words = np.zeros((len(values), values.shape[1] // 8), np.int64)
        for column in range(words.shape[1]):
            for i, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                words[:, column] |= values[:, column * 8 + output] << 4 * i
        return ints(words)

    return {"qweight": packed(codes), "qzeros": packed(zeros), "scales": stored("F16", scales)}


def random_layer(
    rows: int = ROWS, columns: int = COLUMNS, group: int = 32, bits: int = 4, zero: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """codes, zeros, scales; zero: of all groups, None for any."""
    rng = np.random.default_rng(rows + group + bits)
    groups = math.ceil(columns / group)
    codes = rng.integers(0, 1 << bits, (columns, rows))
    zeros = rng.integers(1, 1 << bits, (groups, rows)) if zero is None else np.full((groups, rows), zero)
    scales = rng.uniform(0.001, 0.1, (groups, rows)).astype(np.float16).astype(np.float32)
    return codes, zeros, scales


def expected(
    codes: NDArray[np.int64], zeros: NDArray[np.int64], scales: NDArray[np.float32], group: int
) -> NDArray[np.float64]:
    """scale * (code - zero), in float64: [outputs, inputs]."""
    of_input = np.arange(len(codes)) // group
    return (scales.astype(np.float64)[of_input] * (codes - zeros[of_input])).T


def quantized_folder(
    path: Path, layers: Mapping[str, Mapping[str, Stored | None]], config: Mapping[str, Any], **arguments: Any
) -> Path:
    tensors: dict[str, Stored | None] = {f"{layer}.weight": None for layer in layers}
    tensors |= {f"{layer}.{part}": tensor for layer, parts in layers.items() for part, tensor in parts.items()}
    return write_tiny_folder(path, tensors=tensors, config={"quantization_config": config}, **arguments)


def values(model_file: ModelFile, name: str) -> NDArray[np.float32]:
    info = model_file.tensors[name]
    return dequantize(info.format, model_file.read(name), info.shape)


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize(
    ("bits", "group", "zero", "format"),
    [
        (4, 32, 8, "Q4_0"), (4, 64, 8, "Q4_0"), (4, -1, 8, "Q4_0"), (4, 128, None, "Q5_0"), (4, 32, None, "Q5_0"),
        (4, 32, 15, "Q5_0"), (4, 32, 1, "Q5_0"), (8, 32, 128, "Q8_0"), (2, 32, None, "Q4_0"),
    ],
)  # fmt: skip
def test_gptq(tmp_path: Path, bits: int, group: int, zero: int | None, format: str) -> None:
    columns = COLUMNS if group == -1 else group
    layer = random_layer(group=columns, bits=bits, zero=zero)
    config = GPTQ | {"bits": bits, "group_size": group}
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(*layer, bits=bits)}, config)
    with open_model(path) as folder:
        load_model_spec(folder)
        assert folder.tensors["blk.0.ffn_gate.weight"].format == format
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(*layer, columns)).all()


def test_gptq_of_the_second_version_stores_zeros_as_they_are(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer()
    config = GPTQ | {"checkpoint_format": "gptq_v2"}
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(codes, zeros + 1, scales)}, config)
    with open_model(path) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(codes, zeros, scales, 32)).all()


def test_the_second_version_by_its_newer_name(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer()
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(codes, zeros + 1, scales)}, GPTQ | {"format": "gptq_v2"})
    with open_model(path) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(codes, zeros, scales, 32)).all()


BY_GPTQMODEL: dict[str, Any] = {"meta": {"quantizer": ["gptqmodel:2.0.0"]}}


@pytest.mark.parametrize("bits", [2, 4])
def test_zeros_of_0_borrow_from_their_neighbours(tmp_path: Path, bits: int) -> None:
    codes, zeros, scales = random_layer(bits=bits)
    zeros[0, [0, 5, 6]] = 0
    parts = gptq(codes, zeros + 1, scales, bits)  # words as they would be without the subtraction
    words = np.frombuffer(parts["qzeros"][2], "<u4") - np.uint32({2: 0x55555555, 4: 0x11111111}[bits])
    parts["qzeros"] = (*parts["qzeros"][:2], words.tobytes())
    config = GPTQ | {"bits": bits}
    with open_model(quantized_folder(tmp_path / "f", {LAYER: parts}, config | BY_GPTQMODEL)) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(codes, zeros, scales, 32)).all()
    path = quantized_folder(tmp_path / "other", {LAYER: parts}, config)
    with pytest.raises(ModelFileError, match=r"has zeros of 0, stored less 1, .*; take .* gptq_v2"):
        open_model(path)


def test_a_zero_of_0_at_the_end_of_a_word(tmp_path: Path) -> None:
    codes, zeros, scales = random_layer()
    zeros[1, 7] = 0  # has no neighbour, so there is one way to read it
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(codes, zeros, scales)}, GPTQ)
    with open_model(path) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(codes, zeros, scales, 32)).all()


def test_rules_that_leave_layers_out(tmp_path: Path) -> None:
    layer = random_layer()
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(*layer)}, GPTQ | {"dynamic": {"-:.*down_proj": {}}})
    with open_model(path) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(*layer, 32)).all()


def test_rules_that_give_layers_their_own_sizes(tmp_path: Path) -> None:
    layer, other = random_layer(), random_layer(64, 64, group=64, bits=8, zero=128)
    layers = {LAYER: gptq(*layer), Q_PROJ: gptq(*other, bits=8)}
    config = GPTQ | {"dynamic": {"+:.*q_proj": {"bits": 8, "group_size": 64}}}
    plain = {f"{Q_PROJ}.weight": stored("F32", expected(*other, 64))}
    floats = open_model(write_tiny_folder(tmp_path / "plain", tensors=plain))
    with open_model(quantized_folder(tmp_path / "f", layers, config)) as folder, floats:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(*layer, 32)).all()
        assert (values(folder, "blk.1.attn_q.weight") == values(floats, "blk.1.attn_q.weight")).all()


def test_the_configuration_in_a_file_of_its_own(tmp_path: Path) -> None:
    layer = random_layer()
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(*layer)}, {})
    write_json(path / "config.json", {k: v for k, v in read_json(path / "config.json").items() if k != "quantization_config"})
    write_json(path / "quantize_config.json", {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False})
    with open_model(path) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(*layer, 32)).all()


@pytest.mark.parametrize("zero", [None, 8, 0, 15])
def test_awq(tmp_path: Path, zero: int | None) -> None:
    layer = random_layer(group=64, zero=zero)
    path = quantized_folder(tmp_path / "f", {LAYER: awq(*layer)}, AWQ | {"group_size": 64})
    with open_model(path) as folder:
        load_model_spec(folder)
        assert folder.tensors["blk.0.ffn_gate.weight"].format == ("Q4_0" if zero == 8 else "Q5_0")
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(*layer, 64)).all()


W4A16: dict[str, Any] = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32}}},
}  # fmt: skip


def of_weights(**changes: Any) -> dict[str, Any]:
    weights = W4A16["config_groups"]["group_0"]["weights"] | changes
    return W4A16 | {"config_groups": {"group_0": {"weights": weights}}}


def packed_rows(codes: NDArray[np.int64], scales: NDArray[np.float32], bits: int = 4) -> dict[str, Any]:
    """As compressed-tensors packs. codes: [outputs, inputs], signed; scales: [outputs, groups]."""
    per_word = 32 // bits
    words = np.zeros((len(codes), codes.shape[1] // per_word), np.int64)
    for column in range(codes.shape[1]):
        words[:, column // per_word] |= (codes[:, column] + (1 << bits - 1)) << bits * (column % per_word)
    shape: Stored = ("I64", (2,), np.array(codes.shape, "<i8").tobytes())
    return {"weight_packed": ints(words), "weight_scale": stored("BF16", scales), "weight_shape": shape}


@pytest.mark.parametrize(("bits", "groups"), [(4, 2), (4, 1), (8, 2)])
def test_compressed_integers(tmp_path: Path, bits: int, groups: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(-(1 << bits - 1), 1 << bits - 1, (ROWS, COLUMNS))
    scales = (rng.integers(1, 128, (ROWS, groups)) / 2**12).astype(np.float32)  # bf16 and f16 numbers
    config = of_weights(num_bits=bits, group_size=COLUMNS // groups)
    path = quantized_folder(tmp_path / "f", {LAYER: packed_rows(codes, scales, bits)}, config)
    with open_model(path) as folder:
        load_model_spec(folder)
        assert folder.tensors["blk.0.ffn_gate.weight"].format == ("Q4_0" if bits == 4 else "Q8_0")
        assert (values(folder, "blk.0.ffn_gate.weight") == codes * np.repeat(scales, COLUMNS // groups, axis=1)).all()
        row = folder.tensors["blk.0.ffn_gate.weight"].row_bytes
        whole = folder.read("blk.0.ffn_gate.weight")
        assert (folder.read_rows("blk.0.ffn_gate.weight", 5, 30) == whole[5 * row : 30 * row]).all()


INT8: dict[str, Any] = W4A16 | {
    "format": "int-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}}},
}


@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS, 2), (1,), ()])
def test_compressed_bytes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    codes = np.resize(np.arange(-128, 128), (ROWS, COLUMNS)).astype(np.int8)
    scales = (np.arange(1, math.prod(shape) + 1) % 128 / 2**12).astype(np.float32).reshape(shape)
    scale: Stored = ("F32", shape, scales.tobytes())
    parts = {"weight": ("I8", codes.shape, codes.tobytes()), "weight_scale": scale, "input_zero_point": ints(np.zeros(1))}
    path = quantized_folder(tmp_path / "f", {LAYER: parts}, INT8)
    used = np.repeat(scales, COLUMNS // shape[1], axis=1) if len(shape) == 2 else scales
    with open_model(path) as folder:
        load_model_spec(folder)
        assert folder.tensors["blk.0.ffn_gate.weight"].format == "Q8_0"
        assert (values(folder, "blk.0.ffn_gate.weight") == codes * used).all()


def test_scales_of_the_kv_cache_say_nothing(tmp_path: Path) -> None:
    parts = {"k_scale": stored("F32", [0.5]), "v_scale": stored("F32", [0.5])}
    codes = np.zeros((ROWS, COLUMNS), np.int64)
    layers = {LAYER: packed_rows(codes, np.ones((ROWS, 2), np.float32)), "model.layers.0.self_attn": parts}
    load_model_spec(open_model(quantized_folder(tmp_path / "f", layers, W4A16)))


@pytest.mark.parametrize("pack", [gptq, awq])
def test_any_rows_and_permuted_ones(tmp_path: Path, pack: Callable[..., dict[str, Stored]]) -> None:
    layers = {LAYER: random_layer(), Q_PROJ: random_layer(64, 64)}
    config = GPTQ if pack is gptq else AWQ
    path = quantized_folder(tmp_path / "f", {name: pack(*layer) for name, layer in layers.items()}, config)
    whole = {f"{name}.weight": stored("F32", expected(*layer, 32)) for name, layer in layers.items()}
    plain = write_tiny_folder(tmp_path / "plain", tensors=whole)
    with open_model(path) as folder, open_model(plain) as floats:
        for name in ("blk.0.ffn_gate.weight", "blk.1.attn_q.weight"):
            info = folder.tensors[name]
            assert (values(folder, name) == values(floats, name)).all()
            data = folder.read(name).reshape(info.num_rows, info.row_bytes)
            for start, stop in ((0, 1), (3, 21), (8, 16), (info.num_rows - 5, info.num_rows)):
                assert (folder.read_rows(name, start, stop) == data[start:stop].reshape(-1)).all()
        ids = random_tokens(2, 16)
        a, b = (reference_logits(file, ids, activations="f32") for file in (folder, floats))
        assert (a == b).all()


def e4m3(weights: NDArray[np.uint8]) -> Stored:
    return "F8_E4M3", weights.shape, weights.tobytes()


def finite_codes(rows: int = ROWS, columns: int = COLUMNS) -> NDArray[np.uint8]:
    codes = np.arange(rows * columns, dtype=np.int64) * 37 % 256
    return np.where(codes % 128 == 127, 0, codes).astype(np.uint8).reshape(rows, columns)


def test_e4m3_values() -> None:
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 127 == 127:
            assert math.isnan(E4M3_VALUES[code])
            continue
        size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        assert E4M3_VALUES[code] == math.copysign(size, -1 if code & 128 else 1)
    assert E4M3_VALUES[0x7E] == 448


FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 48]}
COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}}
POWERS = np.array([[0.5, 2.0**-9], [4.0, -1.0], [2.0**20, 0.25]])


@pytest.mark.parametrize(
    ("config", "name", "scale", "dtype", "format"),
    [
        (FP8, "weight_scale_inv", POWERS, "F32", "BF16"),
        (FP8, "weight_scale_inv", POWERS * 1.25, "BF16", "F32"),
        (FP8, "weight_scale_inv", POWERS * (1 + 2.0**-19), "F32", "F32"),
        (FP8 | {"weight_block_size": None}, "weight_scale", np.array(0.75), "F32", "F32"),
        (COMPRESSED, "weight_scale", np.array([0.125]), "F32", "BF16"),
        (COMPRESSED, "weight_scale", np.linspace(1, 2, ROWS)[:, None], "BF16", "F32"),
        (COMPRESSED, "weight_scale", np.linspace(1, 2, ROWS), "BF16", "F32"),
    ],
)
def test_fp8(tmp_path: Path, config: dict[str, Any], name: str, scale: NDArray[np.float64], dtype: str, format: str) -> None:
    codes = finite_codes()
    scale_tensor: Stored = ("F32", (), np.float32(scale).tobytes()) if scale.shape == () else stored(dtype, scale)
    parts = {"weight": e4m3(codes), name: scale_tensor, "input_scale": stored("F32", [1.0])}
    path = quantized_folder(tmp_path / "f", {LAYER: parts}, config)
    used = dequantize(dtype, np.frombuffer(scale_tensor[2], np.uint8), scale.shape or (1,)).astype(np.float64)
    if scale.shape == POWERS.shape:
        used = np.repeat(np.repeat(used, 32, axis=0), 48, axis=1)[:, :COLUMNS]
    elif scale.shape == (ROWS,):
        used = used[:, None]
    with open_model(path) as folder:
        load_model_spec(folder)
        info = folder.tensors["blk.0.ffn_gate.weight"]
        assert info.format == format
        assert (values(folder, info.name) == E4M3_VALUES[codes].astype(np.float64) * used).all()
        assert (folder.read_rows(info.name, 30, 70) == folder.read(info.name)[30 * info.row_bytes : 70 * info.row_bytes]).all()


def test_fp8_with_blocks_larger_than_the_matrix(tmp_path: Path) -> None:
    codes = finite_codes()
    parts = {"weight": e4m3(codes), "weight_scale_inv": stored("F32", POWERS[:, :1])}
    path = quantized_folder(tmp_path / "f", {LAYER: parts}, FP8 | {"weight_block_size": [32, 2**31 - 1]})
    with open_model(path) as folder:
        used = np.repeat(POWERS[:, :1], 32, axis=0)
        assert (values(folder, "blk.0.ffn_gate.weight") == E4M3_VALUES[codes].astype(np.float64) * used).all()


def blocks(*sizes: Any) -> dict[str, Any]:
    weights = [{"num_bits": 8, "type": "float", "block_structure": size} for size in sizes]
    return COMPRESSED | {"config_groups": {f"group_{i}": {"weights": group} for i, group in enumerate(weights)}}


@pytest.mark.parametrize("config", [blocks([32, 48]), blocks(None, [32, 48])])
def test_compressed_fp8_of_blocks(tmp_path: Path, config: dict[str, Any]) -> None:
    codes = finite_codes()
    parts = {"weight": e4m3(codes), "weight_scale": stored("BF16", POWERS)}
    used = np.repeat(np.repeat(POWERS, 32, axis=0), 48, axis=1)[:, :COLUMNS]
    with open_model(quantized_folder(tmp_path / "f", {LAYER: parts}, config)) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == E4M3_VALUES[codes].astype(np.float64) * used).all()


def e8m0(codes: list[list[int]]) -> Stored:
    return "F8_E8M0", (len(codes), len(codes[0])), np.array(codes, np.uint8).tobytes()


def test_fp8_with_scales_that_are_exponents(tmp_path: Path) -> None:
    codes = finite_codes()
    parts = {"weight": e4m3(codes), "weight_scale_inv": e8m0([[126, 118], [129, 127], [147, 90]])}
    scales = np.array([[0.5, 2.0**-9], [4.0, 1.0], [2.0**20, 2.0**-37]])
    used = np.repeat(np.repeat(scales, 32, axis=0), 48, axis=1)[:, :COLUMNS]
    with open_model(quantized_folder(tmp_path / "f", {LAYER: parts}, FP8 | {"scale_fmt": "ue8m0"})) as folder:
        assert folder.tensors["blk.0.ffn_gate.weight"].format == "BF16"
        assert (values(folder, "blk.0.ffn_gate.weight") == E4M3_VALUES[codes].astype(np.float64) * used).all()


def packed(**changes: Any) -> dict[str, Stored | None]:
    return {**gptq(*random_layer()), **changes}


BYTES: dict[str, Any] = {
    "weight": ("I8", (ROWS, COLUMNS), bytes(ROWS * COLUMNS)), "weight_scale": stored("F32", np.ones((ROWS, 1))),
}  # fmt: skip
OWN_SIZES = GPTQ | {"dynamic": {".*down_proj": {"bits": 8}}}
ROWS_4 = packed_rows(np.zeros((ROWS, COLUMNS), np.int64), np.ones((ROWS, 2), np.float32))


@pytest.mark.parametrize(
    ("config", "parts", "message"),
    [
        ({"quant_method": "bitsandbytes"}, packed(), r"quantization_config: 'quant_method' \('bitsandbytes'\) is not read"),
        ({"bits": 4}, packed(), r"'quant_method' \(missing\) is not read"),
        (GPTQ | {"bits": 3}, packed(), r"'bits' \(3\) is not read"),
        (GPTQ | {"bits": "4"}, packed(), r"'bits' \('4'\) must be an integer"),
        (GPTQ | {"group_size": 0}, packed(), r"'group_size' \(0\) must be an integer"),
        (GPTQ | {"checkpoint_format": "marlin"}, packed(), r"'checkpoint_format' \('marlin'\) is not implemented"),
        (GPTQ | {"group_size": 64}, packed(), r"its scales are F16 \[2, 96\], not floats of \[1, 96\]"),
        (GPTQ | {"group_size": 16}, gptq(*random_layer(group=16)), "groups of 16 in rows of 64 are not whole groups of 32"),
        (GPTQ, packed(qzeros=None), f"tensor '{LAYER}.qzeros' is missing beside"),
        (GPTQ, packed(qzeros=ints(np.zeros((2, 11)))), r"its zeros are I32 \[2, 11\], not I32 of \[2, 12\]"),
        (GPTQ, packed(qweight=("F32", (8, 96), bytes(8 * 96 * 4))), r"is F32 \[8, 96\], not a matrix of I32"),
        (GPTQ, packed(qweight=ints(np.zeros(96))), r"is I32 \[96\], not a matrix of I32"),
        (GPTQ, packed(qweight=ints(np.zeros((8, 36)))), "holds 36 x 64 codes of 4 bits, whose zeros fill no whole words"),
        (GPTQ, packed(qweight=ints(np.zeros((0, 96)))), "holds 96 x 0 codes"),
        (GPTQ | {"desc_act": True}, packed(), r"'desc_act' \(True\) is not read without g_idx"),
        (GPTQ, packed(scales=stored("F16", np.full((2, 96), np.inf))), "its scales are no float16 numbers"),
        (GPTQ, packed(scales=stored("F32", np.full((2, 96), 0.1))), "its scales are no float16 numbers"),
        (GPTQ, packed(scales=stored("BF16", np.full((2, 96), 1e30))), "its scales are no float16 numbers"),
        (GPTQ, packed(g_idx=ints(np.arange(64) % 2)), r"columns of its groups are not in order \(desc_act\)"),
        (GPTQ, packed(g_idx=ints(np.zeros(63))), r"its g_idx is I32 \[63\], not I32 of \[64\]"),
        (GPTQ, packed(weight=stored("F32", np.ones((96, 64)))), r"safetensors: tensor .* is there twice"),
        (GPTQ | {"bits": 8}, gptq(*random_layer(bits=8), bits=8), "zeros from .* fit no format without loss"),
        (AWQ | {"bits": 8}, awq(*random_layer()), r"'bits' \(8\) is not read"),
        (AWQ | {"version": "gemv"}, awq(*random_layer()), r"'version' \('gemv'\) is not read"),
        (AWQ | {"version": None, "format": "gemv"}, awq(*random_layer()), r"'format' \('gemv'\) is not read"),
        (AWQ, {"weight": e4m3(finite_codes())}, "F8_E4M3; hotloop reads BF16, F16 and F32"),
        (FP8, {"weight": e4m3(finite_codes())}, "is F8_E4M3 and has 0 scales"),
        (FP8, {"weight": e4m3(finite_codes()), "weight_scale_inv": stored("F32", POWERS * 0.1)}, "more than 20 significant"),
        (FP8, {"weight": e4m3(finite_codes()), "weight_scale_inv": stored("F32", POWERS * np.inf)}, "infinite or out of range"),
        (FP8, {"weight": e4m3(finite_codes()), "weight_scale_inv": stored("F32", POWERS[:2])}, "fits neither rows nor blocks"),
        (FP8, {"weight": e4m3(finite_codes()), "weight_scale_inv": ints(POWERS * 0)}, "its scale is I32"),
        (FP8 | {"weight_block_size": [0, 1]}, {"weight": e4m3(finite_codes())}, "'weight_block_size' .* must be two sizes"),
        (FP8, {"weight": e4m3(finite_codes()), "weight_scale_inv": e8m0([[127, 255]] * 3)}, "infinite or out of range"),
        (FP8, {"weight": e4m3(finite_codes()), "weight_scale_inv": e8m0([[127, 0]] * 3)}, "infinite or out of range"),
        (FP8, BYTES, "is I8; hotloop reads"),
        (blocks([32, 48], [16, 16]), {"weight": e4m3(finite_codes())}, "'config_groups' .* blocks of different sizes"),
        (blocks("32x48"), {"weight": e4m3(finite_codes())}, r"'block_structure' \('32x48'\) must be two sizes"),
        (INT8, BYTES | {"weight_scale": None}, "is I8 and has 0 scales"),
        (INT8, BYTES | {"weight_scale": stored("F32", np.ones((ROWS, 3)))}, r"its scale is F32 \[96, 3\]"),
        (INT8, BYTES | {"weight": ("I8", (ROWS, 2, 32), bytes(ROWS * COLUMNS))}, r"is I8 \[96, 2, 32\], not a matrix of I8"),
        (of_weights(symmetric=False) | {"format": "int-quantized"}, BYTES, r"'symmetric' \(False\) is not implemented"),
        (OWN_SIZES, packed(qzeros=ints(np.zeros((2, 9)))), "has codes of 3 bits"),
        (OWN_SIZES, packed(qzeros=ints(np.zeros(12))), r"the shapes \[\[8, 96\], \[12\], \[2, 96\]\], not those of matrices"),
        (OWN_SIZES, packed(qzeros=ints(np.zeros((2, 24)))), "groups of 16 in rows of 32"),
        (OWN_SIZES, packed(scales=stored("F16", np.ones((4, 96)))), r"its zeros are I32 \[2, 12\], not"),
        (OWN_SIZES, packed(scales=stored("F16", np.ones((99, 96)))), "its scales are F16"),
        (GPTQ | {"dynamic": {".*q_proj": {"format": "marlin"}}}, packed(), "'dynamic' .* packed in another way"),
        (GPTQ | {"dynamic": {".*q_proj": 8}}, packed(), "'dynamic' .* packed in another way"),
        (GPTQ | {"format": "gptq_p"}, packed(), r"'format' \('gptq_p'\) is not implemented"),
        (COMPRESSED | {"format": "nvfp4-pack-quantized"}, packed(), "of compressed-tensors is not read"),
        (W4A16 | {"transform_config": {"config_groups": {"u": {}}}}, ROWS_4, "'transform_config' .* is not implemented"),
        (W4A16 | {"config_groups": {}}, ROWS_4, "'config_groups' .* must be one group"),
        (W4A16 | {"config_groups": {"a": {}, "b": {}}}, ROWS_4, "'config_groups' .* must be one group"),
        (of_weights(num_bits=2), ROWS_4, r"'num_bits' \(2\) is not read"),
        (of_weights(symmetric=False), ROWS_4, r"'symmetric' \(False\) is not implemented"),
        (of_weights(actorder="group"), ROWS_4, r"'actorder' \('group'\) is not implemented"),
        (of_weights(group_size=48), ROWS_4, r"'group_size' \(48\) contradicts the groups of 32 columns of"),
        (W4A16, ROWS_4 | {"weight_scale": None}, "weight_scale or weight_shape is missing beside"),
        (W4A16, ROWS_4 | {"weight_shape": ints(np.ones(2))}, r"its shape is I32 \[2\]"),
        (W4A16, ROWS_4 | {"weight_shape": ("I64", (2,), bytes(16))}, "does not hold 0 x 0 4-bit codes"),
        (W4A16, ROWS_4 | {"weight_scale": stored("F32", np.ones((96, 3)))}, r"its scale is F32 \[96, 3\]"),
        (W4A16, ROWS_4 | {"weight_scale": stored("F32", np.full((96, 2), 0.1))}, "its scales are no float16 numbers"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, config: dict[str, Any], parts: dict[str, Any], message: str) -> None:
    path = quantized_folder(tmp_path / "f", {LAYER: parts}, config)
    with pytest.raises(ModelFileError, match=message):
        open_model(path)


def test_a_single_group_has_no_order(tmp_path: Path) -> None:
    layer = random_layer(group=COLUMNS)
    path = quantized_folder(tmp_path / "f", {LAYER: gptq(*layer)}, GPTQ | {"desc_act": True, "group_size": -1})
    with open_model(path) as folder:
        assert (values(folder, "blk.0.ffn_gate.weight") == expected(*layer, COLUMNS)).all()


def test_a_g_idx_in_order_says_nothing(tmp_path: Path) -> None:
    path = quantized_folder(tmp_path / "f", {LAYER: packed(g_idx=ints(np.arange(64) // 32))}, GPTQ | {"desc_act": True})
    load_model_spec(open_model(path))


@pytest.mark.parametrize("format", CODE_RANGES)
def test_every_code_of_a_format(format: str) -> None:
    low, high = CODE_RANGES[format]
    codes = np.resize(np.arange(low, high + 1), (8, 64)).astype(np.int8)
    scales = np.array([[0.5, 3.0]] * 8, np.float16)
    packed = dequantize(format, pack_codes(format, codes, scales), (8, 64))
    assert (packed == codes * np.repeat(scales.astype(np.float32), 32, axis=1)).all()
