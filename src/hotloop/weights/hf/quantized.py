"""Quantized checkpoints: which of a folder's tensors together are one weight, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.weights.hf.config import HFConfig
from hotloop.weights.hf.fp8 import FP8Matrix
from hotloop.weights.hf.packed_integers import AWQMatrix, GPTQMatrix, PackedLayer
from hotloop.weights.hf.packed_rows import PackedRows
from hotloop.weights.hf.sources import TensorSource
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import StoredTensor

Tensors = Mapping[str, StoredTensor]
Gathered = Mapping[str, StoredTensor | TensorSource]

_GPTQ_BITS = (2, 4, 8)
# Of activations and of the KV cache: hotloop has its own precision of both.
_NOT_OF_WEIGHTS = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".output_scale")


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
    quantization.require("checkpoint_format", None, "gptq", "gptq_v2")
    zero_offset = 0 if quantization.raw("checkpoint_format") == "gptq_v2" else 1
    if quantization.flag("desc_act") and group_size != -1 and not any(name.endswith(".g_idx") for name in tensors):
        raise quantization.error("desc_act", "is not read without g_idx, which says the order of the columns")
    return _gather_packed(tensors, lambda layer: GPTQMatrix(layer, bits, group_size, zero_offset))


def _gather_awq(tensors: Tensors, quantization: HFConfig) -> Gathered:
    bits = quantization.size("bits" if quantization.has("bits") else "w_bit")
    if bits != 4:
        raise quantization.error("bits", "is not read; hotloop reads 4")
    version = quantization.raw("version")
    if version is not None and str(version).lower() != "gemm":
        raise quantization.error("version", "is not read; hotloop reads the packing of 'gemm'")
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
        _put(gathered, stem, build(PackedLayer(codes, tensors[f"{stem}.qzeros"], tensors[f"{stem}.scales"], g_idx)))
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            gathered.pop(f"{stem}.{part}", None)
    return gathered


def _gather_fp8(tensors: Tensors, quantization: HFConfig) -> Gathered:
    size = quantization.raw("weight_block_size")
    if size is not None and not (
        isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n < 2**31 for n in size)
    ):
        raise quantization.error("weight_block_size", "must be two sizes")
    return _gather_scaled(tensors, None if size is None else (size[0], size[1]))


def _gather_compressed(tensors: Tensors, quantization: HFConfig) -> Gathered:
    if (transforms := quantization.section("transform_config")) is not None and transforms.names():
        raise quantization.error("transform_config", "is not implemented: its rotations are part of the forward pass")
    match quantization.raw("format"):
        case "float-quantized" | "naive-quantized":
            return _gather_scaled(tensors, None)
        case "pack-quantized":
            return _gather_packed_rows(tensors, quantization)
        case _:
            raise quantization.error(
                "format", "of compressed-tensors is not read; hotloop reads 'float-quantized' (FP8) and 'pack-quantized'"
            )


def _gather_packed_rows(tensors: Tensors, quantization: HFConfig) -> Gathered:
    groups = quantization.section("config_groups")
    names = groups.names() if groups is not None else []
    group = groups.section(names[0]) if groups is not None and len(names) == 1 else None
    weights = group.section("weights") if group is not None else None
    if weights is None:
        raise quantization.error("config_groups", "must be one group, with weights")
    bits = weights.size("num_bits")
    if bits not in (4, 8):
        raise weights.error("num_bits", "is not read; hotloop reads 4 and 8")
    weights.require("type", "int")
    weights.require("symmetric", True)
    weights.require("actorder", None, "static", "weight", False)  # "group" leaves the columns out of order
    gathered: dict[str, StoredTensor | TensorSource] = dict(tensors)
    for name, codes in tensors.items():
        stem, _, suffix = name.rpartition(".")
        if suffix != "weight_packed":
            continue
        scale, shape = tensors.get(f"{stem}.weight_scale"), tensors.get(f"{stem}.weight_shape")
        if scale is None or shape is None:
            raise ModelFileError(f"{codes.file.path}: weight_scale or weight_shape is missing beside {quote(name)}")
        _put(gathered, stem, PackedRows(codes, scale, shape, bits))
        for part in ("packed", "scale", "shape"):
            del gathered[f"{stem}.weight_{part}"]
    return gathered


def _gather_scaled(tensors: Tensors, block: tuple[int, int] | None) -> Gathered:
    gathered: dict[str, StoredTensor | TensorSource] = {
        name: tensor for name, tensor in tensors.items() if not name.endswith(_NOT_OF_WEIGHTS)
    }
    for name, weight in tensors.items():
        if weight.dtype != "F8_E4M3":
            continue
        scales = [f"{name}{ending}" for ending in ("_scale_inv", "_scale") if f"{name}{ending}" in tensors]
        if len(scales) != 1:
            raise ModelFileError(f"{weight.file.path}: tensor {quote(name)} is F8_E4M3 and has {len(scales)} scales, not one")
        gathered[name] = FP8Matrix(weight, tensors[scales[0]], block)
        del gathered[scales[0]]
    return gathered


def _put(gathered: dict[str, StoredTensor | TensorSource], stem: str, source: TensorSource) -> None:
    name = f"{stem}.weight"
    if name in gathered:
        raise ModelFileError(f"tensor {quote(name)} is there twice: quantized, and as it is")
    gathered[name] = source
