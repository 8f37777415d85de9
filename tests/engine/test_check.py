"""`hotloop check`: passes on a model that is computed right, and finds one that is not."""

import json
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from hotloop import _native
from hotloop.bench import check
from hotloop.bench.check import CheckResult, check_model
from hotloop.bench.quality import measure, quality_text
from hotloop.cli import main as cli
from hotloop.errors import InvalidRequestError
from hotloop.ops.kernel_set import self_check
from hotloop.quant.formats import quantize
from hotloop.weights.open_model import open_model
from hotloop.weights.quantized_model import open_quantized
from tiny_folders import stored, write_tiny_folder
from tiny_models import random_tokens, write_tiny_model

SCHEMA = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())
IDS = random_tokens(2, 24)


def result_of(path: Path, quantize: str | None = None, isa: str = "") -> CheckResult:
    with open_quantized(path, quantize) as model:
        return check_model(model, IDS, threads=1, isa=isa, report=lambda _: None)


def failed(result: CheckResult) -> list[str]:
    return [each.name for each in result.checks if not each.passed]


@pytest.mark.parametrize(
    ("architecture", "formats"), [("llama", "Q4_K"), ("gemma3", "Q8_0"), ("qwen2", "BF16"), ("qwen3", "IQ4_XS")]
)
def test_a_model_that_is_computed_right(architecture: str, formats: str, tmp_path: Path) -> None:
    result = result_of(write_tiny_model(tmp_path / "tiny.gguf", architecture, formats=formats))
    assert failed(result) == []
    assert result.passed
    assert result.isas == tuple(_native.usable_isas())
    assert result.layers == result.all_layers
    assert len(result.checks) == 3 + len(result.isas)
    assert (result.int8_kl_nats > 0) == (formats != "BF16")
    (limit,) = (each.limit for each in result.checks if each.name == "int8_activations_mean_kl_nats")
    assert limit == pytest.approx(2 * result.int8_kl_nats + 1e-5)


def test_a_folder_that_is_quantized_on_the_way(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "folder", "llama", dtype="BF16")
    result = result_of(folder, "q4_0", isa="scalar")
    assert result.passed
    assert result.isas == ("scalar",)


def test_of_a_text_as_much_as_the_model_has_positions_for(tmp_path: Path) -> None:
    result = result_of(write_tiny_model(tmp_path / "tiny.gguf", "gpt2", context_length=16), isa="scalar")
    assert result.passed
    assert result.positions == 16 < len(IDS)


@pytest.mark.skipif(len(_native.usable_isas()) == 1, reason="this machine has the scalar kernel set only")
@pytest.mark.parametrize("asked", [False, True])
def test_a_kernel_set_that_is_replaced_has_not_passed(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, used = _native.usable_isas()[:2]
    monkeypatch.setattr(_native, "self_check", lambda isa: "sums" if isa == best else None)
    self_check.cache_clear()
    try:
        result = result_of(write_tiny_model(tmp_path / "tiny.gguf", formats="Q4_0"), isa=best if asked else "")
    finally:
        self_check.cache_clear()
    assert failed(result) == [f"bits_of_{used}_and_{best}"]


def test_of_a_large_model_the_first_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", num_layers=3, formats="Q8_0")
    monkeypatch.setattr(check, "_MAX_WEIGHTS", 3 * 300 * 64 + 2 * 32_000)
    result = result_of(path, isa="scalar")
    assert result.passed
    assert (result.layers, result.all_layers) == (2, 3)
    monkeypatch.setattr(check, "_MAX_WEIGHTS", 1)
    assert result_of(path, isa="scalar").layers == 1


def test_logits_of_another_model_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = (write_tiny_model(tmp_path / f"{seed}.gguf", seed=seed, formats="Q8_0") for seed in (0, 1))
    right: Callable[..., object] = check.native_logits

    def wrong(model: object, *args: object, **kwargs: object) -> object:
        with open_model(other) as other_model:
            return right(other_model, *args, **kwargs)

    monkeypatch.setattr(check, "native_logits", wrong)
    assert failed(result_of(path, isa="scalar")) == [
        "f32_activations_mean_kl_nats", "f32_activations_top1_agreement", "int8_activations_mean_kl_nats",
    ]  # fmt: skip


def test_a_kernel_set_with_other_bits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isas = _native.usable_isas()
    if len(isas) < 2:
        pytest.skip("this machine has one kernel set")
    right = check.native_logits

    def wrong(*args: object, isa: str, **kwargs: object) -> object:
        for logits in right(*args, isa=isa, **kwargs):  # type: ignore[arg-type]
            yield logits * np.float32(1 + 2**-23) if isa == "scalar" else logits

    monkeypatch.setattr(check, "native_logits", wrong)
    assert failed(result_of(write_tiny_model(tmp_path / "tiny.gguf", formats="Q8_0"))) == [f"bits_of_{isas[0]}_and_scalar"]


def test_weights_that_give_no_numbers_fail(tmp_path: Path) -> None:
    bad = np.full((64, 64), np.nan, np.float32)
    tensors = {"blk.0.attn_output.weight": ("F16", (64, 64), quantize("F16", bad))}
    path = write_tiny_model(tmp_path / "bad.gguf", formats="F16", tensors=tensors)  # type: ignore[arg-type]
    assert "finite_logits" in failed(result_of(path, isa="scalar"))


def test_json_has_null_for_what_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = quantize("F16", np.full((64, 64), np.nan, np.float32))
    path = write_tiny_model(tmp_path / "bad.gguf", formats="F16", tensors={"blk.0.attn_output.weight": ("F16", (64, 64), bad)})
    assert run(monkeypatch, "check", path, "--isa", "scalar", "--tokens", 4, "--json") == 1
    checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["f32_activations_mean_kl_nats"] == {
        "name": "f32_activations_mean_kl_nats", "value": None, "limit": 1e-5, "passed": False,
    }  # fmt: skip


def test_an_unknown_kernel_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="'sse9' is not usable"):
        result_of(write_tiny_model(tmp_path / "tiny.gguf"), isa="sse9")


def run(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr("sys.argv", ["hotloop", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", formats="Q8_0")
    options = ("--tokens", 8, "--isa", "scalar", "--threads", 1)
    assert run(monkeypatch, "check", path, *options, "--json") == 0
    out, err = capsys.readouterr()
    assert set(json.loads(out)) == set(SCHEMA["check"])
    assert "\npass: 8 positions, 2 of 2 layers, kernel sets scalar" in err
    monkeypatch.setattr(check, "MAX_FLOAT_KL_NATS", -1.0)
    assert run(monkeypatch, "check", path, *options) == 1
    out = capsys.readouterr().out
    assert "FAIL  f32_activations_mean_kl_nats" in out
    assert "\nThis machine does not compute this model right" in out


def test_distances_by_hand() -> None:
    p, q = np.log([[0.5, 0.5, 1e-30], [0.25, 0.75, 1e-30]]), np.log([[0.25, 0.75, 1e-30], [0.4, 0.6, 1e-30]])
    figures = measure([0, 1], [p[:1], p[1:]], [q[:1], q[1:]]).figures()
    assert set(figures) == set(SCHEMA["quality"])
    kl = [0.5 * np.log(2) + 0.5 * np.log(2 / 3), 0.25 * np.log(0.25 / 0.4) + 0.75 * np.log(0.75 / 0.6)]
    np.testing.assert_allclose([figures["mean_kl_nats"], figures["max_kl_nats"]], [np.mean(kl), max(kl)])
    np.testing.assert_allclose([figures["source_perplexity"], figures["perplexity"]], [1 / 0.5, 1 / 0.75])
    assert (figures["positions"], figures["top1_agreement"]) == (2, 0.5)


def test_the_text_has_several_languages_and_code() -> None:
    text = quality_text()
    assert "def " in text
    assert "柳树" in text
    assert 4000 < len(text.encode()) < 6000


def test_a_damaged_file_is_not_the_machines_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gain = stored("F32", np.full(64, np.nan))
    folder = write_tiny_folder(tmp_path / "folder", tensors={"model.norm.weight": gain})
    assert not result_of(folder, isa="scalar").finite
    assert run(monkeypatch, "check", folder, "--isa", "scalar") == 1
    cause = "on any machine: its weights are absurd, model.norm.weight holds nan; the file is damaged, or wrong"
    assert cause in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("input_layernorm", (64,)),
        ("self_attn.v_proj", (32, 64)),
        ("self_attn.o_proj", (64, 64)),
        ("post_attention_layernorm", (64,)),
        ("mlp.gate_proj", (96, 64)),
        ("mlp.down_proj", (64, 96)),
    ],
)
def test_an_absurd_weight_is_not_the_machines_fault(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    shape: tuple[int, ...],
) -> None:
    """Also where all logits are numbers: the reference op set sums in float64, which does not overflow."""
    weights = np.full(shape, 0.01)
    weights[..., -1] = -1e30
    tensor = f"model.layers.1.{name}.weight"
    folder = write_tiny_folder(tmp_path / "folder", tensors={tensor: stored("F32", weights)})
    assert run(monkeypatch, "check", folder, "--isa", "scalar", "--tokens", 8) == 1
    out = capsys.readouterr().out
    assert f"any machine: its weights are absurd, {tensor} holds -1e+30; the file is damaged, or wrong" in out
    assert "This machine does not" not in out
