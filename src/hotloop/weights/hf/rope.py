"""Rotary embeddings of a config.json in the terms of GGUF: keys below `<architecture>.rope.`, and tensors of divisors.

Older files have rope_theta and rope_scaling, newer ones rope_parameters with both; the type is "rope_type" or "type".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from hotloop.weights.hf.config import HFConfig
from hotloop.weights.model_file import MetadataValue

_KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
_LAYER_TYPES = ("full_attention", "sliding_attention")


def rope_section(config: HFConfig, layer_type: str | None = None) -> HFConfig:
    """The parameters of the layers of one type, whichever way the file states them; without rope_theta in older files.

    layer_type: None in classes whose layers all rotate alike. In others rope_parameters must be by layer type (ModelFileError
    if they are not): of parameters for all layers transformers reads nothing.
    """
    parameters = config.section("rope_parameters")
    if parameters is None:
        return config.section("rope_scaling") or HFConfig({}, "rope_scaling")
    if layer_type is None:
        return parameters
    if set(parameters.names()) - set(_LAYER_TYPES):
        raise config.error("rope_parameters", f"must be by the type of layer: {' and '.join(_LAYER_TYPES)}, an object each")
    return parameters.section(layer_type) or HFConfig({}, f"rope_parameters: {layer_type}")


def rope_base(config: HFConfig, section: HFConfig) -> float:
    """The base that a section, or else the configuration, states. Raises ModelFileError where they contradict each other."""
    stating = section if section.has("rope_theta") else config
    base = stating.number("rope_theta")
    if base <= 0:
        raise stating.error("rope_theta", "must be greater than 0")
    if stating is section and config.states("rope_theta") and config.number("rope_theta") != base:
        raise config.error("rope_theta", f"contradicts the {base:g} of rope_parameters")
    return base


def rope_type(section: HFConfig) -> str:
    """The type as newer files call it; "default" where there is no scaling. Raises ModelFileError for two that differ."""
    kinds = []
    for name in ("rope_type", "type"):  # transformers writes the new name and keeps the old one beside it
        if (value := section.raw(name)) is not None:
            if not isinstance(value, str):
                raise section.error(name, "must be a text")
            if value == "yarn" and section.has("long_factor"):
                value = "longrope"  # as the first Phi-3 files call it
            kinds.append({"su": "longrope", "none": "default"}.get(value, value))
    if len(set(kinds)) > 1:
        raise section.error("type", f"contradicts the rope_type {kinds[0]!r:.40}")
    return kinds[0] if kinds else "default"


def rotated(config: HFConfig, section: HFConfig, head_dim: int) -> int:
    """Elements of a head that rotate: partial_rotary_factor of it, which stands in either place, or in both."""
    name = "partial_rotary_factor"
    stating = section if section.has(name) else config
    factor = stating.number(name, 1.0)
    if not 0 < factor <= 1:
        raise stating.error(name, "must be greater than 0 and at most 1")
    if stating is section and config.states(name) and config.number(name) != factor:
        raise config.error(name, f"contradicts the {factor:g} of rope_parameters")
    dim = int(head_dim * factor)
    if factor < 1 and (dim < 2 or dim % 2):
        raise stating.error(name, f"lets {dim} of the {head_dim} elements of a head rotate; their number must be even")
    return dim


def rope_metadata(config: HFConfig, section: HFConfig) -> dict[str, MetadataValue]:
    """rope.freq_base and rope.scaling.*. Raises ModelFileError for a type or a parameter that is not implemented."""
    metadata: dict[str, MetadataValue] = {"rope.freq_base": rope_base(config, section)}
    kind = rope_type(section)
    if kind == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": _factor(section)}
    elif kind == "yarn":
        metadata |= _yarn(config, section)
    elif kind == "dynamic":
        # Scaled beyond the context that the configuration states, and only there: never, then.
        _factor(section)
    elif kind == "longrope":
        metadata |= _longrope(config, section)
    elif kind not in ("default", "llama3"):
        raise section.error("rope_type", f"is not implemented here; hotloop knows {', '.join(_KINDS)}")
    if kind == "llama3":
        for name in ("factor", "scaling_factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
            section.raw(name)  # read by llama3_divisors
    section.check_all_used(("rope_theta",))
    return metadata


def _factor(section: HFConfig, default: float | None = None) -> float:
    """How far the context is stretched, under either of its names."""
    name = "scaling_factor" if section.has("scaling_factor") else "factor"
    if section.has("factor") and section.number("factor") != section.number(name):
        raise section.error("scaling_factor", f"contradicts the factor {section.number('factor'):g}")
    return section.number(name, default)


def _original_context(config: HFConfig, section: HFConfig) -> int:
    """The context before it was stretched, in tokens; Phi-3 states it outside of the section."""
    stated = config.size("original_max_position_embeddings", config.size("max_position_embeddings"))
    original = section.size("original_max_position_embeddings", stated)
    if config.states("original_max_position_embeddings") and original != stated:
        raise section.error("original_max_position_embeddings", f"contradicts the {stated} outside of it")
    return original


def _longrope(config: HFConfig, section: HFConfig) -> dict[str, MetadataValue]:
    for name in ("long_factor", "short_factor"):
        section.raw(name)  # read by longrope_divisors
    original = _original_context(config, section)
    stretch = _factor(section, config.size("max_position_embeddings") / original)
    usual = 1.0
    if stretch > 1 and original > 1:
        with localcontext(prec=30):
            usual = float((1 + Decimal(stretch).ln() / Decimal(original).ln()).sqrt())
    return {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": section.number("attention_factor", usual),
    }


def _yarn(config: HFConfig, section: HFConfig) -> dict[str, MetadataValue]:
    original = _original_context(config, section)
    factor = _factor(section, config.size("max_position_embeddings") / original)
    if factor < 1:
        raise section.error("factor", "must be at least 1")
    metadata: dict[str, MetadataValue] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    if not section.flag("truncate", True):
        metadata["rope.scaling.yarn_truncate"] = False
    for name in ("beta_fast", "beta_slow"):
        if section.raw(name):
            metadata[f"rope.scaling.yarn_{name}"] = section.number(name)
    both = bool(section.raw("mscale")) and bool(section.raw("mscale_all_dim"))
    if section.has("attention_factor"):
        # The key multiplies what YaRN prescribes; the configuration states the product.
        with localcontext(prec=30):
            usual = float(Decimal(factor).ln() / 10 + 1)
        metadata["rope.scaling.attn_factor"] = float(np.float32(section.number("attention_factor") / usual))
    elif both and section.number("mscale") == 1:
        metadata["rope.scaling.yarn_log_multiplier"] = section.number("mscale_all_dim")
    elif both:
        raise section.error("mscale", "is not implemented beside mscale_all_dim; hotloop computes 1.0 only")
    return metadata


def rope_tensors(config: HFConfig, section: HFConfig, dim: Callable[[], int]) -> Mapping[str, NDArray[np.float32]]:
    """The tensors of divisors that go with `rope_metadata`: float32 [dim / 2] each. Raises ModelFileError as it does."""
    match rope_type(section):
        case "llama3":
            return llama3_divisors(config, section, dim())
        case "longrope":
            return longrope_divisors(section, dim())
        case _:
            return {}


def longrope_divisors(section: HFConfig, dim: int) -> Mapping[str, NDArray[np.float32]]:
    """The tensors rope_factors_long.weight and rope_factors_short.weight of a section of type longrope."""
    lists = {name: section.numbers(f"{name}_factor", dim // 2) for name in ("long", "short")}
    return {f"rope_factors_{name}.weight": np.array(values, np.float32) for name, values in lists.items()}


def llama3_divisors(config: HFConfig, section: HFConfig, dim: int) -> Mapping[str, NDArray[np.float32]]:
    """The tensor rope_freqs.weight, float32 [dim / 2], of a section of type llama3.

    Low frequencies are divided by `factor`, high ones by 1, those between by a blend. Rounded as llama.cpp's converter
    rounds: every step to float32. Source: the rope of Llama 3.1.
    """
    f = np.float32
    factor = _factor(section)
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    context = _original_context(config, section)
    if not 0 < low < high or factor < 1:
        raise section.error("low_freq_factor", "must be greater than 0 and less than high_freq_factor, and factor at least 1")
    base = rope_base(config, section)
    divisors = []
    with np.errstate(all="ignore"):  # infinite wavelengths, of a base that the model refuses, and limits beyond float32
        for i in range(0, dim, 2):
            wavelength = _reciprocal(_reciprocal(_power(base, f(i) / f(dim)))) * f(2 * math.pi)
            if wavelength < f(context / high):
                divisors.append(f(1))
            elif wavelength > f(context / low):
                divisors.append(f(factor))
            else:
                smooth = (_reciprocal(wavelength) * f(context) - f(low)) / f(high - low)
                divisors.append(_reciprocal((f(1) - smooth) / f(factor) + smooth))
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


def _power(base: float, exponent: np.float32) -> np.float32:
    """base^exponent, rounded once: no libm takes part."""
    with localcontext(prec=30):
        return np.float32(float(Decimal(base) ** Decimal(float(exponent))))


def _reciprocal(x: np.float32) -> np.float32:
    return np.float32(1) / x
