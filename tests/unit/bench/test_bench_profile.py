import numpy as np

from hotloop.bench.batches import BatchMaker, Span, load_runner
from hotloop.bench.profile import OUTSIDE, KindShare, op_kinds, profile_step, profile_table, weight_bytes_by_kind
from hotloop.telemetry.traffic import weight_bytes_per_step
from hotloop.weights.gguf import GGUFFile


def test_linear_is_named_by_its_source() -> None:
    ops = ["norm", "qkv", "attention", "quantize", "linear", "norm", "gate_up", "linear", "norm", "linear", "softcap"]
    kinds = op_kinds(ops)
    assert [k for k, op in zip(kinds, ops, strict=True) if op == "linear"] == ["attn_output", "ffn_down", "lm_head"]
    assert [k for k, op in zip(kinds, ops, strict=True) if op != "linear"] == [op for op in ops if op != "linear"]
    assert op_kinds(["layer_norm", "up", "linear"]) == ["layer_norm", "up", "ffn_down"]


def test_profile_accounts_for_every_op_and_computes_the_same(gguf: GGUFFile) -> None:
    runner = load_runner(gguf, 2, 20, 2, "")
    maker = BatchMaker(runner, 2, 20)
    batches = [maker.batch([Span(0, p, p + 1), Span(1, p, p + 1)]) for p in range(10, 13)]
    program = runner.program()
    logits = program.replay(batches[0]).copy()
    profile = program.profile(batches[0])
    assert (program.program.value(program.output, 2) == logits).all()
    assert profile.elapsed_s.shape == (len(profile.ops),)
    assert profile.busy_s.shape == (2, len(profile.ops))
    assert (profile.busy_s >= 0).all()
    assert (profile.busy_s[0] <= profile.elapsed_s).all()

    weights = weight_bytes_by_kind(runner.model, gguf)
    shares = {s.kind: s for s in profile_step(program, batches, weights)}
    layers = runner.model.config.num_layers
    for kind in ("qkv", "attention", "attn_output", "gate_up", "ffn_down"):
        assert shares[kind].num_ops == layers
    assert shares["lm_head"].num_ops == 1
    assert sum(s.num_ops for s in shares.values()) == len(profile.ops)
    assert shares[OUTSIDE].num_ops == 0
    # All weights of a step but for vectors and embedding rows.
    total = sum(s.read_bytes for s in shares.values())
    assert 0.9 * weight_bytes_per_step(runner.model, gguf) < total <= weight_bytes_per_step(runner.model, gguf)


def test_table_is_sorted_and_adds_up() -> None:
    lines = profile_table([KindShare("norm", 2, 1e-3, 5e-4, 0), KindShare("qkv", 1, 3e-3, 0.0, 30_000_000)])
    assert [line.split()[0] for line in lines] == ["op", "qkv", "norm", "all"]
    assert lines[1].split() == ["qkv", "1", "3.000", "75.0%", "10.0", "0.0%", "3000.0"]
    assert lines[3].split() == ["all", "4.000", "12.5%"]
    assert np.isclose(float(lines[2].split()[3].rstrip("%")), 25.0)
