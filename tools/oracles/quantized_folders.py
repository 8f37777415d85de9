"""Compare the weights and logits of quantized folders with those of the libraries that wrote them.

    python tools/oracles/quantized_folders.py [PART OF A CASE'S NAME ...]

Needs torch, transformers, compressed-tensors and GPT-QModel beside hotloop's test dependencies, and the unpacked source
distributions of AutoGPTQ and AutoAWQ on PYTHONPATH; no GPU. docs/oracles.md says how to get them. A tiny random llama model is
quantized by each library in each way below. What hotloop reads must be, bit for bit, what the library makes of the same
folder with float32 scales, and what it makes of it in its own type once ours is rounded to that type; logits must be those
of transformers with these weights, in float64. What has no exact counterpart must be refused with the reason. Prints a line
for each case and ends with status 1 if one fails.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from quantizing_libraries import (
    Weights,
    auto_gptq_weights,
    auto_gptq_write,
    autoawq_weights,
    autoawq_write,
    compressed_weights,
    compressed_write,
    config_of,
    fp8_weights,
    fp8_write,
    gptqmodel_weights,
    gptqmodel_write,
)
from safetensors.torch import load_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from hotloop.errors import ModelFileError  # noqa: E402
from hotloop.models.reference import reference_logits  # noqa: E402
from hotloop.quant.formats import dequantize  # noqa: E402
from hotloop.weights.hf.folder import HFFolder  # noqa: E402
from hotloop.weights.open_model import open_model  # noqa: E402
from tiny_folders import write_tokenizer  # noqa: E402
from tiny_models import random_tokens, tiny_config  # noqa: E402

NUM_TOKENS = 32
LIMIT = 1e-5
"""Of the largest difference of logits, over the largest logit: rope's angles are float32 on one side."""
HEADS = {"attn_q": 4, "attn_k": 2}
"""Of tensors whose rows hotloop has in another order."""

LIBRARIES: dict[str, tuple[Callable[..., None], Callable[[Path], Weights]]] = {
    "gptqmodel": (gptqmodel_write, gptqmodel_weights),
    "auto-gptq": (auto_gptq_write, auto_gptq_weights),
    "autoawq": (autoawq_write, autoawq_weights),
    "compressed": (compressed_write, compressed_weights),
    "fp8": (fp8_write, fp8_weights),
}


@dataclass(frozen=True, slots=True)
class Case:
    """settings: of the library's write. formats: that the linear layers get. refused: what the message says, instead.
    one_signed: some groups of weights are all positive, some all negative, which gives zeros at the ends of their range."""

    library: str
    name: str
    settings: dict[str, Any]
    formats: str = ""
    refused: str = ""
    one_signed: bool = False


def gptq(name: str, formats: str = "", refused: str = "", one_signed: bool = False, **settings: Any) -> Case:
    return Case("gptqmodel", f"gptq-{name}", settings, formats, refused, one_signed)


def awq(name: str, formats: str = "", refused: str = "", **settings: Any) -> Case:
    return Case("gptqmodel", f"awq-{name}", {"quant_method": "awq", "bits": 4} | settings, formats, refused, True)


def old_gptq(name: str, formats: str = "", refused: str = "", one_signed: bool = False, **settings: Any) -> Case:
    return Case("auto-gptq", name, settings, formats, refused, one_signed)


def ct(name: str, formats: str = "", refused: str = "", **settings: Any) -> Case:
    return Case("compressed", name, settings, formats, refused)


def fp8(name: str, formats: str = "", refused: str = "", **settings: Any) -> Case:
    return Case("fp8", name, {"scale_fmt": "float"} | settings, formats, refused)


BLOCK = (128, 128)
CASES = (
    gptq("sym-32", "Q4_0", bits=4, group_size=32),
    gptq("sym-64", "Q4_0", bits=4, group_size=64),
    gptq("sym-128", "Q4_0", bits=4, group_size=128),
    gptq("sym-row", "Q4_0", bits=4, group_size=-1, act_group_aware=False),
    gptq("sym-v2", "Q4_0", bits=4, group_size=64, format="gptq_v2"),
    gptq("asym-32", "Q5_0", bits=4, group_size=32, sym=False, one_signed=True),
    gptq("asym-v2", "Q5_0", bits=4, group_size=32, sym=False, format="gptq_v2", one_signed=True),
    gptq("sym-2bit", "Q4_0", bits=2, group_size=32),
    gptq("asym-2bit", "Q4_0", bits=2, group_size=32, sym=False, one_signed=True),
    gptq("sym-8bit", "Q8_0", bits=8, group_size=64),
    gptq("lm-head", "Q4_0 Q8_0", bits=4, group_size=64, lm_head=True),
    gptq("asym-8bit", refused="of 8 bits with zeros .* fit no format without loss", bits=8, group_size=64, sym=False),
    gptq("desc-act", refused="not in order .desc_act.", bits=4, group_size=32, desc_act=True, act_group_aware=False),
    gptq("groups-of-16", refused="groups of 16 in rows of", bits=4, group_size=16),
    gptq("3bit", refused="'bits' .3. is not read", bits=3, group_size=32),
    gptq("dynamic", "Q4_0 Q8_0", bits=4, group_size=64, dynamic={r"+:.*down_proj": {"bits": 8, "group_size": 32}}),
    gptq("dynamic-3bit", refused="has codes of 3 bits", bits=4, group_size=64, dynamic={r"+:.*down_proj": {"bits": 3}}),
    gptq("dynamic-skip", "Q4_0", bits=4, group_size=64, dynamic={r"-:.*down_proj": {}}),
    awq("sym-32", "Q4_0", group_size=32),
    awq("asym-64", "Q5_0", group_size=64, sym=False),
    awq("asym-128", "Q5_0", group_size=128, sym=False),
    old_gptq("sym-128", "Q4_0", bits=4, group_size=128, sym=True),
    old_gptq("sym-8bit", "Q8_0", bits=8, group_size=32, sym=True),
    old_gptq("asym-32", "Q5_0", bits=4, group_size=32, sym=False),
    old_gptq("zeros-of-0", refused="zeros of 0", bits=4, group_size=32, sym=False, one_signed=True),
    Case("autoawq", "32", {"group_size": 32}, "Q5_0", one_signed=True),
    Case("autoawq", "64", {"group_size": 64}, "Q5_0", one_signed=True),
    Case("autoawq", "128", {"group_size": 128}, "Q5_0", one_signed=True),
    Case("autoawq", "gemv", {"group_size": 64, "version": "gemv"}, refused="'version' .'gemv'. is not read"),
    Case("autoawq", "gemv-fast", {"group_size": 64, "version": "gemv_fast"}, refused="'version' .'gemv_fast'. is not read"),
    ct("w4a16-32", "Q4_0", scheme="W4A16", group_size=32),
    ct("w4a16-64", "Q4_0", scheme="W4A16", group_size=64),
    ct("w4a16-128", "Q4_0", scheme="W4A16", group_size=128),
    ct("w4a16-row", "Q4_0", scheme="W4A16", group_size=None, strategy="channel"),
    ct("w8a16-row", "Q8_0", scheme="W8A16", group_size=None, strategy="channel"),
    ct("w8a16-128", "Q8_0", scheme="W8A16", group_size=128),
    ct("fp8-tensor", "F32", scheme="FP8"),
    ct("fp8-row", "F32", scheme="FP8_DYNAMIC"),
    ct("fp8-block", "F32", scheme="FP8_BLOCK"),
    ct("fp8-block-odd", "F32", scheme="FP8_BLOCK", block_structure=[96, 80]),
    ct("int8", "Q8_0", scheme="INT8"),
    ct("w4a16-asym", refused="'symmetric' .False. is not implemented", scheme="W4A16_ASYM"),
    ct("w3a16", refused="'num_bits' .3. is not read", scheme="W3A16"),
    ct("w4a16-f32-scales", refused="scales are no float16", scheme="W4A16", scale_dtype="float32"),
    ct("fp8-f32-scales", refused="more than 20 significant bits", scheme="FP8_DYNAMIC", scale_dtype="float32"),
    ct("nvfp4", refused="'format' .'nvfp4-pack-quantized'. of compressed-tensors is not read", scheme="NVFP4A16"),
    fp8("tensor", "F32", block=None, scale_dtype="bfloat16"),
    fp8("block", "F32", block=BLOCK, scale_dtype="bfloat16"),
    fp8("block-ue8m0", "BF16", block=BLOCK, scale_fmt="ue8m0"),
    fp8("block-ue8m0-f32", "BF16", block=BLOCK, scale_fmt="ue8m0", scale_dtype="float32"),
    fp8("block-f32", refused="more than 20 significant bits", block=BLOCK),
)  # fmt: skip


def main() -> None:
    chosen = [case for case in CASES if not sys.argv[1:] or any(part in f"{case.library} {case.name}" for part in sys.argv[1:])]
    failures = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # GPT-QModel writes a log into the current folder
        bases = {one_signed: write_base(Path(scratch) / f"base{one_signed}", one_signed) for one_signed in (False, True)}
        lines = []
        for i, case in enumerate(chosen):
            folder = Path(scratch) / f"{i}"
            try:
                problem, line = check(case, bases[case.one_signed], folder)
            except Exception as error:
                problem, line = f"fails: {type(error).__name__}: {error}", ""
            failures += bool(problem)
            lines.append(f"{case.library:10} {case.name:18} {problem or line}")
    print("\n".join(lines))
    print(f"{len(chosen)} cases, {failures} failed")
    sys.exit(failures > 0)


def write_base(folder: Path, one_signed: bool, hidden_size: int = 256, intermediate_size: int = 384) -> Path:
    """A random model to quantize. one_signed: as in Case."""
    torch.manual_seed(one_signed)
    config = transformers.LlamaConfig(
        hidden_size=hidden_size, intermediate_size=intermediate_size, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=320, max_position_embeddings=128, attention_bias=True, initializer_range=0.1,
        bos_token_id=264, eos_token_id=266, pad_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.float16)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, float("norm" in name), 0.2)
        elif one_signed and "_proj" in name:
            parameter.data[3:29, 32:160].abs_()
            parameter.data[20:60, :128].abs_().neg_()
    model.save_pretrained(folder)
    write_tokenizer(folder, tiny_config("llama"))
    return folder


def check(case: Case, base: Path, folder: Path) -> tuple[str, str]:
    """What is wrong, or else what to print."""
    write, weights_of = LIBRARIES[case.library]
    write(base, folder, **case.settings)
    try:
        with open_model(folder) as ours:
            assert isinstance(ours, HFFolder)
            if case.refused:
                return f"is read, and should be refused: {case.refused}", ""
            weights = weights_of(folder)
            if problem := differences(ours, weights, case.formats):
                return problem, ""
            difference = logits_difference(ours, folder, {name: exact for name, (exact, _) in weights.items()})
    except ModelFileError as error:
        message = str(error).replace(str(folder), "FOLDER")
        if case.refused and re.search(case.refused, message):
            return "", f"refused: {message}"
        return f"is refused: {message}", ""
    problem = f"logits differ by {difference:.1e}" if not difference < LIMIT else ""
    num_weights = sum(exact.numel() for exact, _ in weights.values())
    return problem, f"{case.formats:4}: {num_weights} weights equal; logits {difference:.1e}"


def differences(ours: HFFolder, weights: Weights, formats: str) -> str:
    """What differs from the library's weights."""
    names = {ours.source_name(name): name for name in ours.tensors}
    found: set[str] = set()
    if not weights:
        return "the library finds no quantized layer"
    for module, (exact, own) in weights.items():
        name = names[f"{module}.weight"]
        info = ours.tensors[name]
        values = torch.from_numpy(dequantize(info.format, ours.read(name), info.shape))
        if heads := next((HEADS[part] for part in HEADS if part in name), 0):
            values = values.reshape(heads, -1, 2, info.shape[1]).transpose(1, 2).reshape(info.shape)
        assert exact.dtype == torch.float32
        if not torch.equal(values, exact):
            num, most = int((values != exact).sum()), float((values - exact).abs().max())
            return f"{module} ({info.format}): {num} of {exact.numel()} differ, by up to {most:.3g}"
        if not torch.equal(values.to(own.dtype), own):
            return f"{module}: differs from the library's {own.dtype}"
        found.add(info.format)
    return "" if found == {*formats.split()} else f"the formats are {sorted(found)}"


def logits_difference(ours: HFFolder, folder: Path, weights: dict[str, Tensor]) -> float:
    """The largest difference from the logits of transformers with the library's weights, over the largest logit."""
    config = transformers.LlamaConfig(**{k: v for k, v in config_of(folder).items() if k != "quantization_config"})
    model = transformers.LlamaForCausalLM(config).to(torch.float64).eval()
    stored = load_file(folder / "model.safetensors")
    tensors = {name: stored[name] for name in model.state_dict() if name in stored}
    model.load_state_dict(tensors | {f"{name}.weight": weight for name, weight in weights.items()})
    ids = random_tokens(1, NUM_TOKENS)
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    logits = reference_logits(ours, ids, activations="f32", dtype=np.float64)
    return float(np.abs(logits[:, : theirs.shape[1]] - theirs).max() / np.abs(theirs).max())


if __name__ == "__main__":
    main()
