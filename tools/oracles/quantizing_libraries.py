"""The programs that write quantized Hugging Face folders, each as two functions: write one, and say what its weights are.

write(base, target, **settings) quantizes the folder `base` with the library's own code. weights(folder) gives, by module, what
the library makes of the folder: once with its scales widened to float32, so that nothing is rounded, and once in the type that
it computes in.

GPT-QModel, compressed-tensors and transformers write whole folders. AutoGPTQ and AutoAWQ no longer load beside a current
transformers; of these the modules that quantize, pack and unpack a layer are used, and the folder is put together here.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Weights = dict[str, tuple[Tensor, Tensor]]
"""By module: float32, and as the library has it; both [outputs, inputs]."""


def gptqmodel_write(base: Path, target: Path, **settings: Any) -> None:
    from gptqmodel import GPTQModel, QuantizeConfig

    model = GPTQModel.load(str(base), QuantizeConfig(pack_impl="original", **settings))
    torch.manual_seed(1)
    samples = [torch.randint(0, 256, (1, 64)) for _ in range(16)]
    model.quantize([{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in samples], batch_size=1)
    model.save(str(target))


def gptqmodel_weights(folder: Path) -> Weights:
    from gptqmodel import BACKEND, GPTQModel

    gptq = config_of(folder)["quantization_config"]["quant_method"] == "gptq"
    backend = BACKEND.GPTQ_TORCH if gptq else BACKEND.AWQ_TORCH
    model = GPTQModel.load(str(folder), backend=backend, device="cpu", dtype=torch.float16).model
    weights: Weights = {}
    for name, layer in model.named_modules():
        if not hasattr(layer, "qweight"):
            continue
        # The class's own function: that of the instance is compiled, for a minute.
        dequantize = type(layer).dequantize_weight if gptq else _gptqmodel_awq
        own = dequantize(layer).T
        layer.scales.data = layer.scales.data.float()
        layer.clear_weight_cache()
        weights[name] = dequantize(layer).T, own
    return weights


def _gptqmodel_awq(layer: nn.Module) -> Tensor:
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    return dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, layer.bits, layer.group_size)


def auto_gptq_write(base: Path, target: Path, *, bits: int, group_size: int, sym: bool) -> None:
    quantizer_class = _module("auto_gptq", "quantization.quantizer").Quantizer

    def quantized(linear: nn.Linear) -> nn.Module:
        scales, zeros = [], []
        for columns in linear.weight.float().split(group_size, dim=1):
            quantizer = quantizer_class()
            quantizer.configure(bits, perchannel=True, sym=sym)
            quantizer.find_params(columns, weight=True)
            scales.append(quantizer.scale)
            zeros.append(quantizer.zero)
        layer = _auto_gptq_layer(linear.in_features, linear.out_features, linear.bias is not None, bits, group_size)
        layer.pack(linear, torch.cat(scales, dim=1), torch.cat(zeros, dim=1), None)
        return layer

    # Keys of its BaseQuantizeConfig.
    config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": sym, "desc_act": False,
              "damp_percent": 0.01, "static_groups": False, "true_sequential": True, "is_marlin_format": False}  # fmt: skip
    _write_layers(base, target, quantized, config)


@torch.no_grad()
def auto_gptq_weights(folder: Path) -> Weights:
    config = config_of(folder)["quantization_config"]
    weights: Weights = {}
    for name, parts in _layers(folder, "qweight"):
        columns, rows = len(parts["g_idx"]), parts["qweight"].shape[1]
        layer = _auto_gptq_layer(columns, rows, "bias" in parts, config["bits"], config["group_size"])
        layer.load_state_dict(parts)
        layer.bias = None
        # It has no function for this: what identity inputs give.
        own = layer(torch.eye(columns, dtype=torch.float16)).T
        layer.scales = layer.scales.float()
        weights[name] = layer(torch.eye(columns)).T, own
    return weights


def _auto_gptq_layer(columns: int, rows: int, bias: bool, bits: int, group_size: int) -> Any:
    layer_class = _module("auto_gptq", "nn_modules.qlinear.qlinear_cuda_old").QuantLinear
    return layer_class(bits, group_size, columns, rows, bias)


def autoawq_write(base: Path, target: Path, *, group_size: int, version: str = "gemm") -> None:
    quantizer_class = _module("awq", "quantize.quantizer").AwqQuantizer
    name = {"gemm": "GEMM", "gemv": "GEMV", "gemv_fast": "GEMVFast"}[version]
    layer_class = getattr(_module("awq", f"modules.linear.{version}"), f"WQLinear_{name}")
    settings = SimpleNamespace(group_size=group_size, w_bit=4, zero_point=True)

    def quantized(linear: nn.Linear) -> nn.Module:
        weight, scales, zeros = quantizer_class.pseudo_quantize_tensor(settings, linear.weight.data)
        linear.weight.data = weight
        if version == "gemm":
            scales, zeros = scales.t().contiguous(), zeros.t().contiguous()
        return layer_class.from_linear(linear, 4, group_size, False, scales, zeros)

    # Keys of its AwqConfig.to_transformers_dict.
    config = {"quant_method": "awq", "zero_point": True, "group_size": group_size, "bits": 4, "version": version,
              "modules_to_not_convert": None}  # fmt: skip
    _write_layers(base, target, quantized, config)


def autoawq_weights(folder: Path) -> Weights:
    dequantize = _module("awq", "utils.packing_utils").dequantize_gemm
    group_size = config_of(folder)["quantization_config"]["group_size"]
    weights: Weights = {}
    for name, parts in _layers(folder, "qweight"):
        codes, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
        exact = dequantize(codes, zeros, scales.float(), 4, group_size).T
        weights[name] = exact, dequantize(codes, zeros, scales, 4, group_size).T
    return weights


def compressed_write(base: Path, target: Path, *, scheme: str, scale_dtype: str = "bfloat16", **weight_settings: Any) -> None:
    """scheme: a preset of the library; weight_settings: changes of its QuantizationArgs of the weights."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme

    preset = preset_name_to_scheme(scheme, ["Linear"])
    preset.weights = type(preset.weights)(**(preset.weights.model_dump() | weight_settings))
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": preset}, ignore=["lm_head"]))
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            _calibrate(module, getattr(torch, scale_dtype))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(target)
    compressor.update_config(str(target))
    _copy_tokenizer(base, target)


def _calibrate(linear: nn.Module, dtype: torch.dtype) -> None:
    """Scales and zeros from each group's least and greatest weight: the library leaves this step to its callers."""
    from compressed_tensors.quantization.utils import calculate_qparams, maybe_pad_tensor_for_block_quant

    args, weight = linear.quantization_scheme.weights, linear.weight.data.float()
    rows, columns = weight.shape
    match args.strategy:
        case "block":
            height, width = args.block_structure
            padded = maybe_pad_tensor_for_block_quant(weight, (height, width))
            groups = padded.reshape(padded.shape[0] // height, height, -1, width).transpose(1, 2).flatten(2)
        case "group" | "tensor_group":
            groups = weight.reshape(rows, columns // args.group_size, -1)
        case "channel":
            groups = weight.reshape(rows, 1, -1)
        case _:
            groups = weight.reshape(1, -1)
    if hasattr(linear, "weight_global_scale"):
        linear.weight_global_scale.data.fill_(1.0)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    linear.weight_scale.data = scale.to(dtype)
    if getattr(linear, "weight_zero_point", None) is not None:
        linear.weight_zero_point.data = zero.to(linear.weight_zero_point.dtype)


def compressed_weights(folder: Path) -> Weights:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    config = QuantizationConfig(**config_of(folder)["quantization_config"])
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(config.format)
    weights: Weights = {}
    for name, parts in _layers(folder, "weight_scale"):
        own = compressor.decompress(parts, scheme)["weight"]
        wide = parts | {"weight_scale": parts["weight_scale"].float()}
        weights[name] = compressor.decompress(wide, scheme)["weight"], own
    return weights


def fp8_write(base: Path, target: Path, *, block: tuple[int, int] | None, scale_fmt: str, scale_dtype: str = "") -> None:
    """transformers' own quantization step. scale_dtype: of the scales in the file where that is another one, as checkpoints
    from elsewhere have it."""
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    settings = transformers.FineGrainedFP8Config(
        weight_block_size=block, scale_fmt=scale_fmt, modules_to_not_convert=["lm_head"]
    )
    quantize = Fp8Quantize(SimpleNamespace(quantization_config=settings))
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        for part, value in quantize.convert({name: tensor}).items():
            is_rounded = part.endswith("scale_inv") and scale_dtype
            tensors[part] = value.to(getattr(torch, scale_dtype)) if is_rounded else value
    _save(base, target, tensors, settings.to_dict())


def fp8_weights(folder: Path) -> Weights:
    """As transformers loads it, in float32 and in bfloat16."""
    weights = []
    for dtype in (torch.float32, torch.bfloat16):
        settings = transformers.FineGrainedFP8Config(dequantize=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, quantization_config=settings)
        weights.append({name: layer.weight.data for name, layer in model.named_modules() if name.endswith("_proj")})
    return {name: (exact, weights[1][name]) for name, exact in weights[0].items()}


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _module(package: str, name: str) -> Any:
    """package.name, without what the __init__ files above it import."""
    parts = [package, *name.split(".")[:-1]]
    for i in range(len(parts)):
        dotted = ".".join(parts[: i + 1])
        if dotted not in sys.modules:
            places = [Path(entry, *parts[: i + 1]) for entry in sys.path]
            place = next((place for place in places if place.is_dir()), None)
            if place is None:
                raise ModuleNotFoundError(f"{dotted}: put the unpacked source distribution on PYTHONPATH")
            stub = ModuleType(dotted)
            stub.__path__ = [str(place)]
            sys.modules[dotted] = stub
    return importlib.import_module(f"{package}.{name}")


def _layers(folder: Path, part: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The modules that have a tensor `part`, with all their tensors."""
    tensors = load_file(folder / "model.safetensors")
    for name in [key.removesuffix(f".{part}") for key in tensors if key.endswith(f".{part}")]:
        yield name, {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


@torch.no_grad()
def _write_layers(
    base: Path, target: Path, quantized: Callable[[nn.Linear], nn.Module], quantization_config: dict[str, Any]
) -> None:
    """The folder `base` with its linear layers, but for lm_head, as modules of a library."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float16)
    tensors = model.state_dict()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name != "lm_head":
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": value for part, value in quantized(layer).state_dict().items()}
    _save(base, target, tensors, quantization_config)


def _save(base: Path, target: Path, tensors: dict[str, Tensor], quantization_config: dict[str, Any]) -> None:
    target.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    config = config_of(base) | {"quantization_config": quantization_config}
    (target / "config.json").write_text(json.dumps(config, indent=2, default=str))
    _copy_tokenizer(base, target)


def _copy_tokenizer(base: Path, target: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((base / name).read_bytes())
