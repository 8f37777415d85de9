"""The native op set against the reference op set, and against transformers, on tiny models."""

from __future__ import annotations

import math
import os
import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_models import CASES, COLUMN_STEP, GOLDEN_DIR, GoldenCase
from hotloop import _native
from hotloop.config import ActivationDtype, EngineConfig
from hotloop.engine.model_runner import ModelRunner
from hotloop.errors import InvalidRequestError, ModelFileError
from hotloop.kv_cache.manager import KVCacheManager
from hotloop.models.config import kv_groups
from hotloop.models.reference import reference_logits
from hotloop.models.registry import load_model_spec
from hotloop.models.tensors import SUPPORTED_FORMATS
from hotloop.ops.batch import Chunk, build_batch
from hotloop.ops.native import NativeOps, NativeValue, NativeWeights
from hotloop.ops.reference import ReferenceKV, ReferenceOps, ReferenceWeights
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import WritableTensor, write_gguf
from tiny_models import ARCHITECTURES, every_format_of_some, random_tokens, write_tiny_model

EPS = 2.0**-24


def runner_of(path: Path, **config: Any) -> ModelRunner:
    with GGUFFile.open(path) as gguf:
        return ModelRunner(gguf, EngineConfig(**{"threads": 2, "kv_cache_memory_bytes": 1 << 24, "max_num_seqs": 64, **config}))


def native_logits(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], lengths: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Logits of every token of some prompts, side by side in one batch; lengths: tokens of each per step."""
    layout = runner.storage.layout
    manager = KVCacheManager(layout, runner.storage.num_blocks)
    sizes = [layout.tokens_per_block(group) for group in range(len(layout.groups))]
    steps: list[np.ndarray] = []
    start = 0
    for length in lengths or [max(len(prompt) for prompt in prompts)]:
        chunks = []
        for request, prompt in enumerate(prompts):
            assert manager.allocate(str(request), start + length)
            tables = manager.block_tables(str(request))
            chunks.append(Chunk(prompt[start : start + length], start, tables))
        logits = runner.forward(build_batch(chunks, sizes))
        steps.append(logits.reshape(len(prompts), length, -1).copy())
        start += length
    return list(np.concatenate(steps, axis=1))


def reference_batch(path: Path, prompts: Sequence[Sequence[int]], activations: ActivationDtype) -> np.ndarray:
    """Reference logits of prompts of equal length, in one batch: [prompts, tokens, vocab_size]."""
    gguf = GGUFFile.open(path)
    spec = load_model_spec(gguf)
    groups = kv_groups(spec.config)
    kv = ReferenceKV(groups, num_blocks=len(prompts), block_size=len(prompts[0]))
    chunks = [Chunk(prompt, 0, [[i]] * len(groups)) for i, prompt in enumerate(prompts)]
    ops = ReferenceOps(build_batch(chunks, kv.block_size), kv, activations=activations)
    logits = spec.forward(ops, ReferenceWeights(gguf), spec.config)
    return logits.reshape(len(prompts), len(prompts[0]), -1)


def float_limit(path: Path, expected: np.ndarray) -> float:
    """How far float32 accumulation may lead, with f32 activations and KV.

    A dot product of n terms rounds n times, each at random: sqrt(n) EPS of its size. Each layer adds its errors
    to the residual stream, whose scale is that of the logits; twice that bounds the largest of all logits.
    """
    with GGUFFile.open(path) as gguf:
        longest = max(tensor.shape[-1] for tensor in gguf.tensors.values())
        architecture = gguf.get_str("general.architecture")
        num_layers = gguf.get_int(f"{architecture}.block_count")
    return 2 * math.sqrt(longest) * EPS * num_layers * float(np.abs(expected).max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_are_those_of_transformers(case: GoldenCase, tmp_path: Path) -> None:  # known fault B90
    """Every rope scaling, bias, window and head shape."""
    path = case.write(tmp_path / "m.gguf")
    golden = np.load(GOLDEN_DIR / f"{case.name}.npz")["logits"]
    runner = runner_of(path, activations="f32", kv_dtype="f32", block_size=8)
    (logits,) = native_logits(runner, [case.token_ids], [30, *[1] * 18])
    # Twice the limit: transformers rounds to float32 here and there as well.
    assert np.abs(logits[:, ::COLUMN_STEP] - golden).max() <= 2 * float_limit(path, golden)


@pytest.mark.parametrize(("architecture", "id", "formats"), every_format_of_some())
def test_float_activations(architecture: str, id: str, formats: Any, tmp_path: Path) -> None:  # known fault B120
    path = write_tiny_model(tmp_path / "m.gguf", architecture, formats=formats)
    tokens = random_tokens(21, 60)
    expected = reference_logits(path, tokens, activations="f32")
    (logits,) = native_logits(runner_of(path, activations="f32", kv_dtype="f32"), [tokens])
    assert np.abs(logits - expected).max() <= float_limit(path, expected)


@pytest.mark.parametrize(
    ("architecture", "id", "formats"), [case for case in every_format_of_some() if case[1] not in ("F32", "F16", "BF16")]
)
def test_int8_activations(architecture: str, id: str, formats: Any, tmp_path: Path) -> None:
    """An activation on the edge between two codes may fall either way, which moves it by a whole step.

    That happens to one in some 20,000 values, so most prompts of two tokens have none, and theirs must agree
    as with f32 activations. In the others each side is off by no more than what int8 activations cost.
    """
    path = write_tiny_model(tmp_path / "m.gguf", architecture, formats=formats)
    tokens = random_tokens(22, 64)
    prompts = [tokens[i : i + 2] for i in range(0, 64, 2)]
    runner = runner_of(path, kv_dtype="f32")
    logits = native_logits(runner, prompts)
    expected = reference_batch(path, prompts, "int8")
    cost = np.abs(expected - reference_batch(path, prompts, "f32")).max()
    off = np.abs(np.stack(logits) - expected).max(axis=(1, 2))
    assert np.quantile(off, 0.25) <= float_limit(path, expected)
    assert off.max() <= 2 * cost


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_f16_kv(architecture: str, tmp_path: Path) -> None:
    """Keys and values on the edge between two halves may fall either way: less than what f16 costs altogether."""
    path = write_tiny_model(tmp_path / "m.gguf", architecture)
    tokens = random_tokens(23, 50)
    expected = reference_logits(path, tokens, activations="f32", kv_dtype=np.float16)
    exact = reference_logits(path, tokens, activations="f32")
    (logits,) = native_logits(runner_of(path, activations="f32", kv_dtype="f16"), [tokens])
    cost = np.abs(expected - exact)
    assert np.abs(logits - expected).max() <= cost.max() / 2
    assert np.median(np.abs(logits - expected)) <= np.median(cost) / 5


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_more_than_one_span(architecture: str, window: int | None, tmp_path: Path) -> None:
    """Prompts past 256 and 512 positions, with windows that begin inside a span, whole and token by token."""
    path = write_tiny_model(tmp_path / "m.gguf", architecture, window=window, context_length=1024)
    tokens = random_tokens(24, 560)
    expected = reference_logits(path, tokens, activations="f32")
    runner = runner_of(path, activations="f32", kv_dtype="f32")
    lengths = [60] * 8 + [40] + [1] * 40
    (logits,) = native_logits(runner, [tokens], lengths)
    assert np.abs(logits - expected).max() <= float_limit(path, expected)


@pytest.mark.parametrize("dim", [2, 6, 16, 30])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_heads_that_rotate_in_part(architecture: str, dim: int, tmp_path: Path) -> None:
    path = write_tiny_model(
        tmp_path / "m.gguf", architecture, head_dim=32, metadata={f"{architecture}.rope.dimension_count": dim}
    )
    tokens = random_tokens(26, 40)
    expected = reference_logits(path, tokens, activations="f32")
    (logits,) = native_logits(runner_of(path, activations="f32", kv_dtype="f32"), [tokens])
    assert np.abs(logits - expected).max() <= float_limit(path, expected)


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "num_kv_heads": 1},
        {"hidden_size": 160, "intermediate_size": 224, "head_dim": 80, "num_heads": 2, "num_kv_heads": 2},
        {"vocab_size": 281, "num_heads": 14, "num_kv_heads": 7, "head_dim": 32, "num_layers": 1},
        {"num_heads": 12, "num_kv_heads": 1, "head_dim": 256, "hidden_size": 96},
    ],
)
def test_odd_sizes(sizes: dict[str, int], tmp_path: Path) -> None:
    """Rows that are no multiple of 8, heads of no power of two, as many query heads per KV head as there are."""
    path = write_tiny_model(tmp_path / "m.gguf", formats="Q8_0", **sizes)
    tokens = random_tokens(27, 30, sizes.get("vocab_size", 300))
    expected = reference_logits(path, tokens, activations="f32")
    (logits,) = native_logits(runner_of(path, activations="f32", kv_dtype="f32"), [tokens])
    assert np.abs(logits - expected).max() <= float_limit(path, expected)


@pytest.mark.parametrize("isa", _native.usable_isas())
def test_linear_scales_before_the_residual_to_the_bit(isa: str, tmp_path: Path) -> None:
    """((x W^T + bias) * scale) + residual, each operation rounded: numpy's, on a projection without them."""
    rng = np.random.default_rng(3)
    tensors = {"embd": (300, 64), "w": (100, 64), "bias": (100,), "r": (100, 64)}
    contents = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in tensors.items()}
    write_gguf(
        tmp_path / "m.gguf",
        {},
        {name: ("F32", values.shape, values.view(np.uint8).reshape(-1)) for name, values in contents.items()},
    )
    team = _native.ThreadTeam(2)
    with GGUFFile.open(tmp_path / "m.gguf") as gguf:
        weights = NativeWeights(gguf, list(tensors), team)
    storage = runner_of(write_tiny_model(tmp_path / "tiny.gguf")).storage
    bias, scale, tokens = weights.vector("bias", 100), float(np.float32(0.22)), random_tokens(28, 70)

    def run(record: Callable[[NativeOps, NativeValue], NativeValue]) -> np.ndarray:
        ops = NativeOps(storage, team, isa=isa, max_tokens=70, max_logits=70)
        program = ops.compile(record(ops, ops.embed(weights.matrix("embd", 300, 64))))
        return program.replay(build_batch([Chunk(tokens, 0, [list(range(8))])], 16)).copy()

    def matrix(name: str) -> _native.WeightMatrix:
        return weights.matrix(name, 100, 64)

    plain = run(lambda ops, x: ops.linear(x, matrix("w")))
    residual = run(lambda ops, x: ops.linear(x, matrix("r")))
    scaled = run(lambda ops, x: ops.linear(x, matrix("w"), bias=bias, scale=scale, residual=ops.linear(x, matrix("r"))))
    expected = (plain + contents["bias"]) * np.float32(scale) + residual
    np.testing.assert_array_equal(scaled, expected)
    np.testing.assert_array_equal(run(lambda ops, x: ops.linear(x, matrix("w"), scale=scale)), plain * np.float32(scale))


def test_no_position_beyond_the_learned_ones(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", "gpt2", context_length=64)
    assert runner_of(path).max_model_len == 64
    with pytest.raises(InvalidRequestError, match=r"max_model_len is 65, .* 64 positions"):
        runner_of(path, max_model_len=65)


def test_softcaps(tmp_path: Path) -> None:
    caps = {"gemma3.attn_logit_softcapping": 2.0, "gemma3.final_logit_softcapping": 5.0}
    path = write_tiny_model(tmp_path / "m.gguf", "gemma3", metadata=caps)
    tokens = random_tokens(25, 40)
    expected = reference_logits(path, tokens, activations="f32")
    assert 4 < np.abs(expected).max() < 5
    (logits,) = native_logits(runner_of(path, activations="f32", kv_dtype="f32"), [tokens])
    assert np.abs(logits - expected).max() <= float_limit(path, expected)


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_of_requests_gives_the_bits_of_each_alone(
    architecture: str, isa: str, tmp_path: Path
) -> None:  # known fault B55
    path = write_tiny_model(tmp_path / "m.gguf", architecture, formats="Q4_0")
    prompts = [random_tokens(seed, 20) for seed in (31, 32, 33)]
    runner = runner_of(path, isa=isa)
    together = native_logits(runner, prompts, [17, 1, 2])
    for prompt, logits in zip(prompts, together, strict=True):
        (alone,) = native_logits(runner_of(path, isa=isa), [prompt])
        np.testing.assert_array_equal(logits.view(np.uint32), alone.view(np.uint32))


def test_the_formats_that_models_may_have_are_those_with_kernels() -> None:
    assert set(SUPPORTED_FORMATS) == {f.name for f in _native.WeightFormat}


def mapped_pages_bytes(path: Path) -> int:
    """Bytes of the file that this process has in memory through mappings."""
    resident, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            resident += 1024 * int(line.split()[1])
    return resident


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_weights_come_into_memory_once_and_the_file_is_let_go(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 4 << 20, np.uint8)
    shape = (2048, 512)  # F32
    write_gguf(tmp_path / "m.gguf", {}, {"a": ("F32", shape, data), "v": ("F32", (64,), data[:256])})
    gguf = GGUFFile.open(tmp_path / "m.gguf")
    alive = weakref.ref(gguf)
    weights = NativeWeights(gguf, ["a", "v"], _native.ThreadTeam(2))
    assert mapped_pages_bytes(tmp_path / "m.gguf") < data.nbytes // 4
    assert gguf.data("a").sum() == data.sum()  # the measure sees pages: these
    assert mapped_pages_bytes(tmp_path / "m.gguf") >= data.nbytes
    gguf.close()
    del gguf
    assert alive() is None
    assert mapped_pages_bytes(tmp_path / "m.gguf") == 0
    assert weights.nbytes == data.nbytes + 256
    assert weights.has("v")
    assert weights.matrix("a", *shape).rows == 2048


@pytest.mark.parametrize("name", ["matrix", "vector"])
def test_a_file_truncated_after_it_was_opened_is_an_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shape = (3000, 64) if name == "matrix" else (192000,)
    write_gguf(path, {}, {name: ("F32", shape, np.ones(shape, np.float32).view(np.uint8).reshape(-1))})
    with GGUFFile.open(path) as gguf:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ModelFileError, match=rf"m\.gguf: the tensor '{name}' .*: the file ends in it; .*load it again"):
            NativeWeights(gguf, [name], _native.ThreadTeam(2))


def test_a_matrix_is_filled_in_whole_row_blocks() -> None:
    team = _native.ThreadTeam(2)
    kind, rows, row_bytes = _native.WeightFormat.Q4_0, 21, 18
    memory = _native.WeightMemory(_native.matrix_bytes(kind, rows, 32))
    matrix = _native.WeightMatrix.empty(kind, rows, 32, memory)
    assert _native.WeightMatrix.row_block() == 8
    for first, count in ((0, 8), (16, 5), (8, 8), (8, 0)):
        matrix.fill(first, np.zeros(count * row_bytes, np.uint8), team)
    for first, count in ((4, 8), (0, 7), (16, 6), (-8, 8), (24, 1)):
        with pytest.raises(IndexError, match="whole row blocks"):
            matrix.fill(first, np.zeros(count * row_bytes, np.uint8), team)
    with pytest.raises(ValueError, match="do not match"):
        matrix.fill(0, np.zeros(8 * row_bytes + 1, np.uint8), team)
    with pytest.raises(ValueError, match="too small"):
        _native.WeightMatrix.empty(kind, rows, 32, memory)


def test_matrices_share_a_block_of_memory_and_it_must_be_large_enough(tmp_path: Path) -> None:
    kind = (_native.WeightFormat.Q4_0, 9, 32)
    size = _native.matrix_bytes(*kind)
    assert size == 2 * 8 * 18 + 32  # two row blocks, 64-byte aligned
    path = tmp_path / "rows"
    path.write_bytes(bytes(9 * 18))
    team, memory = _native.ThreadTeam(1), _native.WeightMemory(2 * size)
    with path.open("rb") as file:
        for _ in range(2):
            assert _native.WeightMatrix.read(*kind, file.fileno(), 0, team, memory).nbytes == 2 * 8 * 18
        with pytest.raises(ValueError, match="too small"):
            _native.WeightMatrix.read(*kind, file.fileno(), 0, team, memory)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "olmo2"])
def test_fused_and_separate_q_k_and_v_are_the_same_bits(architecture: str, tmp_path: Path) -> None:
    """Converters can fuse them in any architecture."""
    path = write_tiny_model(tmp_path / "m.gguf", architecture, formats="Q4_0")
    tensors: dict[str, WritableTensor | None] = {}
    with GGUFFile.open(path) as gguf:
        for layer in range(2):
            for kind in ("weight", "bias"):
                parts = [gguf.tensors.get(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
                infos = [info for info in parts if info is not None]
                if infos:
                    shape = (sum(info.shape[0] for info in infos), *infos[0].shape[1:])
                    data = np.concatenate([gguf.read(info.name) for info in infos])
                    tensors |= {info.name: None for info in infos}
                    tensors[f"blk.{layer}.attn_qkv.{kind}"] = (infos[0].format, shape, data)
    fused = write_tiny_model(tmp_path / "fused.gguf", architecture, formats="Q4_0", tensors=tensors)
    tokens = random_tokens(29, 40)
    np.testing.assert_array_equal(reference_logits(fused, tokens), reference_logits(path, tokens))
    (separate,), (together,) = (native_logits(runner_of(file), [tokens], [23, *[1] * 17]) for file in (path, fused))
    np.testing.assert_array_equal(together.view(np.uint32), separate.view(np.uint32))


def test_parts_of_weights_share_their_memory(tmp_path: Path) -> None:
    values = np.arange(48 * 64, dtype=np.float32).reshape(48, 64)
    bytes_of = {name: array.view(np.uint8).reshape(-1) for name, array in (("m", values), ("v", values[0]))}
    write_gguf(tmp_path / "m.gguf", {}, {"m": ("F32", (48, 64), bytes_of["m"]), "v": ("F32", (64,), bytes_of["v"])})
    with GGUFFile.open(tmp_path / "m.gguf") as gguf:
        native, reference = NativeWeights(gguf, ["m", "v"], _native.ThreadTeam(1)), ReferenceWeights(gguf)
        held = native.nbytes
        part, ends = native.matrix("m", 16, 64, 24), native.vector("v", 14, 50)
        assert (part.rows, part.cols, part.nbytes, ends.size) == (16, 64, 16 * 256, 14)
        assert native.nbytes == held == values.nbytes + 256
        np.testing.assert_array_equal(reference.matrix("m", 16, 64, 24).values(slice(None)), values[24:40])
        np.testing.assert_array_equal(reference.vector("v", 14, 50), values[0, 50:])
        for begin, rows in ((4, 8), (-8, 8), (40, 16), (0, 0), (8, 2**62)):
            with pytest.raises(ValueError, match="multiple of 8 rows and lie inside"):
                native.matrix("m", rows, 64, begin)
        for begin, size in ((-1, 4), (60, 5), (0, 0)):
            with pytest.raises(ValueError, match="must lie inside"):
                native.vector("v", size, begin)
