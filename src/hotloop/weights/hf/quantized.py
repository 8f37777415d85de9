"""Quantized checkpoints: which of a folder's tensors together are one weight, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.fp8 import FP8Matrix
from hotloop.weights.hf.packed_integers import AWQMatrix, GPTQMatrix, GPTQZeros, PackedLayer
from hotloop.weights.hf.packed_rows import Int8Rows, PackedRows
from hotloop.weights.hf.sources import TensorSource
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import StoredTensor

Tensors = Mapping[str, StoredTensor]
Gathered = Mapping[str, StoredTensor | TensorSource]

_GPTQ_BITS = (2, 4, 8)
# Of activations and of the KV cache: hotloop has its own precision of both.
_NOT_OF_WEIGHTS = (
    ".input_scale", ".input_zero_point", ".activation_scale", ".k_scale", ".v_scale", ".output_scale", ".output_zero_point",
)  # fmt: skip


def gather_weights(tensors: Tensors, quantization: HFConfig | None) -> Gathered:
    """All tensors of a folder by name, those of a quantized layer as the one weight that they are.

    Raises: ModelFileError for a method or a parameter that has no exact counterpart, with the reason; for a layer whose
    tensors are missing or misshapen.
    """
    if quantization is None:
        return tensors
    method = quantization.raw("quant_method")
    gatherers: Mapping[Any, Callable[[Tensors, HFConfig], Gathered]] = {
        "gptq": _gather_gptq, "awq": _gather_awq, "fp8": _gather_fp8, "compressed-tensors": _gather_compressed,
    }  # fmt: skip
    gather = gatherers.get(method) if isinstance(method, str) else None
    if gather is None:
        raise quantization.error(
            "quant_method",
            f"is not read; hotloop reads {', '.join(gatherers)}: take one of these, a checkpoint in bf16 or a GGUF file",
        )
    return gather(tensors, quantization)


def _gather_gptq(tensors: Tensors, quantization: HFConfig) -> Gathered:
    bits, group_size = quantization.size("bits"), _group_size(quantization)
    if bits not in _GPTQ_BITS:
        raise quantization.error("bits", f"is not read; hotloop reads {', '.join(map(str, _GPTQ_BITS))}")
    zeros, own_sizes = _gptq_zeros(quantization), _layers_have_own_sizes(quantization)
    grouped = own_sizes or group_size != -1
    if quantization.flag("desc_act") and grouped and not any(name.endswith(".g_idx") for name in tensors):
        raise quantization.error("desc_act", "is not read without g_idx, which says the order of the columns")

    def build(layer: PackedLayer) -> GPTQMatrix:
        return GPTQMatrix(layer, *(_sizes_of(layer) if own_sizes else (bits, group_size)), zeros)

    return _gather_packed(tensors, build)


def _layers_have_own_sizes(quantization: HFConfig) -> bool:
    """Whether some layers have other bits or groups: by GPT-QModel's rules, which name layers. "-:" ones leave layers out."""
    dynamic = quantization.section("dynamic")
    rules = [dynamic.raw(name) for name in dynamic.names() if not name.startswith("-:")] if dynamic is not None else []
    if any(not isinstance(rule, dict) or {"method", "quant_method", "format", "checkpoint_format"} & {*rule} for rule in rules):
        raise quantization.error("dynamic", "is not read: some layers are packed in another way")
    return bool(rules)


def _sizes_of(layer: PackedLayer) -> tuple[int, int]:
    """Bits and group size, from the shapes of the layer's tensors."""
    shapes = [layer.codes.shape, layer.zeros.shape, layer.scales.shape]
    if not all(len(shape) == 2 and 0 not in shape for shape in shapes):
        raise layer.error(f"and its zeros and scales have the shapes {[*map(list, shapes)]}, not those of matrices")
    bits = layer.zeros.shape[1] * 32 // layer.codes.shape[1]
    if bits not in _GPTQ_BITS:
        raise layer.error(f"has codes of {bits} bits; hotloop reads {', '.join(map(str, _GPTQ_BITS))}")
    return bits, max(layer.codes.shape[0] * 32 // bits // layer.scales.shape[0], 1)


def _gptq_zeros(quantization: HFConfig) -> GPTQZeros:
    for name in ("checkpoint_format", "format"):  # two names of one thing; GPT-QModel writes both
        quantization.require(name, None, "gptq", "gptq_v2")
    if "gptq_v2" in (quantization.raw("checkpoint_format"), quantization.raw("format")):
        return GPTQZeros.AS_THEY_ARE
    meta = quantization.raw("meta")
    writers = meta.get("quantizer") if isinstance(meta, dict) else None
    borrowing = any(str(writer).startswith("gptqmodel") for writer in (writers if isinstance(writers, list) else [writers]))
    return GPTQZeros.LESS_ONE_BORROWING if borrowing else GPTQZeros.LESS_ONE


def _gather_awq(tensors: Tensors, quantization: HFConfig) -> Gathered:
    bits = quantization.size("bits" if quantization.has("bits") else "w_bit")
    if bits != 4:
        raise quantization.error("bits", "is not read; hotloop reads 4")
    for name in ("version", "checkpoint_format", "format"):  # GPT-QModel's names for it too
        if str(quantization.raw(name) or "gemm").lower() != "gemm":
            raise quantization.error(name, "is not read; hotloop reads the packing of 'gemm'")
    group_size = _group_size(quantization)
    return _gather_packed(tensors, lambda layer: AWQMatrix(layer, group_size))


def _group_size(quantization: HFConfig) -> int:
    name = "group_size" if quantization.has("group_size") else "q_group_size"
    return -1 if quantization.raw(name) == -1 else quantization.size(name)


def _gather_packed(tensors: Tensors, build: Callable[[PackedLayer], TensorSource]) -> Gathered:
    gathered: dict[str, StoredTensor | TensorSource] = dict(tensors)
    for name, codes in tensors.items():
        stem, _, suffix = name.rpartition(".")
        if suffix != "qweight":
            continue
        missing = [part for part in ("qzeros", "scales") if f"{stem}.{part}" not in tensors]
        if missing:
            raise ModelFileError(f"{codes.file.path}: tensor {quote(f'{stem}.{missing[0]}')} is missing beside {quote(name)}")
        g_idx = tensors.get(f"{stem}.g_idx")
        _put(gathered, stem, codes, build(PackedLayer(codes, tensors[f"{stem}.qzeros"], tensors[f"{stem}.scales"], g_idx)))
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            gathered.pop(f"{stem}.{part}", None)
    return gathered


def _gather_fp8(tensors: Tensors, quantization: HFConfig) -> Gathered:
    return _gather_scaled(_of_weights(tensors), _block(quantization, "weight_block_size"))


def _block(config: HFConfig, name: str) -> tuple[int, int] | None:
    size = config.raw(name)
    if size is None:
        return None
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n < 2**31 for n in size)):
        raise config.error(name, "must be two sizes")
    return size[0], size[1]


def _gather_compressed(tensors: Tensors, quantization: HFConfig) -> Gathered:
    if (transforms := quantization.section("transform_config")) is not None and transforms.names():
        raise quantization.error("transform_config", "is not implemented: its rotations are part of the forward pass")
    tensors = _of_weights(tensors)
    match quantization.raw("format"):
        case "float-quantized" | "naive-quantized" | "int-quantized":
            schemes = _weight_schemes(quantization)
            for weights in schemes:
                weights.require("symmetric", None, True)
            blocks = {_block(weights, "block_structure") for weights in schemes} - {None}
            if len(blocks) > 1:
                raise quantization.error("config_groups", "is not read: its groups have blocks of different sizes")
            return _gather_scaled(tensors, next(iter(blocks), None), int8=True)
        case "pack-quantized":
            return _gather_packed_rows(tensors, quantization)
        case _:
            raise quantization.error(
                "format",
                "of compressed-tensors is not read; hotloop reads 'float-quantized' (FP8), 'int-quantized' (8 bits) and "
                "'pack-quantized'",
            )


def _weight_schemes(quantization: HFConfig) -> list[HFConfig]:
    """What the groups that quantize weights say of them."""
    groups = quantization.section("config_groups")
    sections = [groups.section(name) for name in groups.names()] if groups is not None else []
    schemes = [section.section("weights") for section in sections if section is not None]
    return [scheme for scheme in schemes if scheme is not None]


def _gather_packed_rows(tensors: Tensors, quantization: HFConfig) -> Gathered:
    schemes = _weight_schemes(quantization)
    if len(schemes) != 1:
        raise quantization.error("config_groups", "must be one group, with weights")
    weights = schemes[0]
    bits = weights.size("num_bits")
    if bits not in (4, 8):
        raise weights.error("num_bits", "is not read; hotloop reads 4 and 8")
    weights.require("type", "int")
    weights.require("symmetric", True)
    weights.require("actorder", None, "static", "weight", False)  # "group" leaves the columns out of order
    group_size = None if weights.raw("group_size") is None else _group_size(weights)
    gathered: dict[str, StoredTensor | TensorSource] = dict(tensors)
    for name, codes in tensors.items():
        stem, _, suffix = name.rpartition(".")
        if suffix != "weight_packed":
            continue
        scale, shape = tensors.get(f"{stem}.weight_scale"), tensors.get(f"{stem}.weight_shape")
        if scale is None or shape is None:
            raise ModelFileError(f"{codes.file.path}: weight_scale or weight_shape is missing beside {quote(name)}")
        rows = PackedRows(codes, scale, shape, bits)
        if group_size not in (None, -1) and rows.group_size != group_size:
            raise weights.error("group_size", f"contradicts the groups of {rows.group_size} columns of {quote(name)}")
        _put(gathered, stem, codes, rows)
        for part in ("packed", "scale", "shape"):
            del gathered[f"{stem}.weight_{part}"]
    return gathered


def _of_weights(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(_NOT_OF_WEIGHTS)}


def _gather_scaled(tensors: Tensors, block: tuple[int, int] | None, *, int8: bool = False) -> Gathered:
    """int8: whether there are weights of I8 too. Elsewhere they are something else."""
    gathered: dict[str, StoredTensor | TensorSource] = dict(tensors)
    for name, weight in tensors.items():
        if weight.dtype != "F8_E4M3" and not (int8 and weight.dtype == "I8"):
            continue
        scales = [f"{name}{ending}" for ending in ("_scale_inv", "_scale") if f"{name}{ending}" in tensors]
        if len(scales) != 1:
            what = f"{weight.file.path}: tensor {quote(name)}"
            raise ModelFileError(f"{what} is {weight.dtype} and has {len(scales)} scales, not one")
        scale = tensors[scales[0]]
        gathered[name] = Int8Rows(weight, scale) if weight.dtype == "I8" else FP8Matrix(weight, scale, block)
        del gathered[scales[0]]
    return gathered


def _put(gathered: dict[str, StoredTensor | TensorSource], stem: str, codes: StoredTensor, source: TensorSource) -> None:
    name = f"{stem}.weight"
    if name in gathered:
        raise ModelFileError(f"{codes.file.path}: tensor {quote(name)} is there twice: quantized, and as it is")
    gathered[name] = source
