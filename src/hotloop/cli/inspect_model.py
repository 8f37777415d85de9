"""`hotloop inspect MODEL`: what is in a model file and what it asks of this machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hotloop.cli import options as opt
from hotloop.cli.terminal import printable

if TYPE_CHECKING:
    from hotloop.kv_cache.layout import KVLayout
    from hotloop.weights.model_file import ModelFile


def command(
    model: opt.Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    max_model_len: opt.MaxModelLen = None,
    quantize: opt.Quantize = None,
    yes: opt.Yes = False,
) -> None:
    """Show a model's architecture, tensors and context, the memory it needs and the decode ceiling here."""
    from hotloop.cli.models import require_model
    from hotloop.weights.quantized_model import open_quantized

    path = require_model(model, yes=yes)
    with open_quantized(path, quantize) as model_file:
        facts = {**_file_facts(path, model_file), **_model_facts(model_file, max_model_len)}
    if as_json:
        import json

        print(json.dumps(facts, indent=1))
    else:
        _print(facts)


def _file_facts(path: Path, model_file: ModelFile) -> dict[str, Any]:
    """What any GGUF file tells, whether or not hotloop can run it."""
    from math import prod

    bytes_by_format: Counter[str] = Counter()
    for tensor in model_file.tensors.values():
        bytes_by_format[tensor.format] += tensor.nbytes
    return {
        "path": str(path),
        "file_bytes": model_file.nbytes,
        "architecture": model_file.get_str("general.architecture", "?"),
        "name": model_file.get_str("general.name", None),
        "parameters": sum(prod(t.shape) for t in model_file.tensors.values()),
        "tensor_bytes_by_format": dict(bytes_by_format.most_common()),
        "chat_template": "tokenizer.chat_template" in model_file.metadata,
    }


def _model_facts(model_file: ModelFile, max_model_len: int | None) -> dict[str, Any]:
    """What follows for hotloop; or why it cannot run the file."""
    from hotloop.config import EngineConfig, KVDtype
    from hotloop.engine.recommended import recommended_sampling
    from hotloop.errors import ModelFileError
    from hotloop.kv_cache.layout import KVLayout
    from hotloop.models.config import kv_groups
    from hotloop.models.registry import load_model_spec
    from hotloop.telemetry.ceilings import cached_read_bandwidth
    from hotloop.telemetry.traffic import weight_bytes_per_step
    from hotloop.text.tokenizer import Tokenizer

    try:
        model = load_model_spec(model_file)
        Tokenizer.of_model(model_file)
        recommended = recommended_sampling(model_file.path, model_file)
    except ModelFileError as error:
        return {"runs": False, "reason": str(error)}
    config = EngineConfig(max_model_len=max_model_len)
    layout = KVLayout(kv_groups(model.config), config.block_size, config.kv_dtype)
    context = min(config.max_model_len or model.config.context_length, model.config.context_length)
    layouts = [KVLayout(layout.groups, config.block_size, dtype) for dtype in get_args(KVDtype)]
    weights = model.weight_bytes(model_file)
    step_bytes = weight_bytes_per_step(model, model_file)
    ceiling = cached_read_bandwidth(config.num_threads)
    kv_pool = layout.blocks_for(context) * layout.block_bytes
    return {
        "runs": True,
        "layers": model.config.num_layers,
        "hidden_size": model.config.hidden_size,
        "num_heads": model.config.num_heads,
        "num_kv_heads": model.config.num_kv_heads,
        "head_dim": model.config.head_dim,
        "vocab_size": model.config.vocab_size,
        "context_tokens": model.config.context_length,
        "recommended_sampling": recommended,
        "kv_dtype": layout.dtype_name,
        "kv_bytes_per_token": _token_bytes(layout),
        "kv_bytes_per_token_by_dtype": {other.dtype_name: _token_bytes(other) for other in layouts},
        "kv_pool_bytes": kv_pool,
        "memory_bytes": weights + kv_pool,
        "weight_bytes_per_step": step_bytes,
        "read_bandwidth_ceiling_bytes_per_s": ceiling.read_bandwidth_bytes_per_s,
        "decode_ceiling_tokens_per_s": ceiling.read_bandwidth_bytes_per_s / step_bytes,
    }


def _token_bytes(layout: KVLayout) -> int:
    return sum(layout.token_bytes(g) for g in range(len(layout.groups)))


def _print(facts: dict[str, Any]) -> None:
    def size(n: float) -> str:
        return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.1f} MB"

    formats = ", ".join(f"{name} {size(n)}" for name, n in facts["tensor_bytes_by_format"].items())
    lines = [
        ("file", f"{facts['path']} ({size(facts['file_bytes'])})"),
        ("architecture", facts["architecture"] + (f" ({facts['name']})" if facts["name"] else "")),
        ("parameters", f"{facts['parameters'] / 1e6:,.0f} M"),
        ("tensor types", formats),
        ("chat template", "yes" if facts["chat_template"] else "no"),
    ]
    if not facts["runs"]:
        lines.append(("runs here", f"no: {facts['reason']}"))
    else:
        lines += [
            ("layers", f"{facts['layers']}, hidden {facts['hidden_size']}, {facts['num_heads']} heads, "
                       f"{facts['num_kv_heads']} KV heads, head_dim {facts['head_dim']}"),
            ("vocabulary", f"{facts['vocab_size']:,}"),
            ("context", f"{facts['context_tokens']:,} tokens"),
            ("sampling", ", ".join(f"{k} {v}" for k, v in facts["recommended_sampling"].items()) or "nothing recommended"),
            ("KV cache", f"{facts['kv_bytes_per_token']:,} bytes per token ({facts['kv_dtype']}); "
                         + ", ".join(f"{n:,} as {name}" for name, n in facts["kv_bytes_per_token_by_dtype"].items()
                                     if name != facts["kv_dtype"])),
            ("memory", f"{size(facts['memory_bytes'])}: weights, and {size(facts['kv_pool_bytes'])} KV at full context"),
            ("decode ceiling", f"{facts['decode_ceiling_tokens_per_s']:.1f} tokens/s at batch 1: "
                               f"{size(facts['weight_bytes_per_step'])} per step at "
                               f"{facts['read_bandwidth_ceiling_bytes_per_s'] / 1e9:.1f} GB/s"),
        ]  # fmt: skip
    for name, value in lines:
        print(printable(f"{name:<15} {value}"))
