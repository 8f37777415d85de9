"""Where a step's time goes, by kind of op."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.models.registry import Model
from hotloop.ops.batch import ForwardBatch
from hotloop.ops.native import NativeProgram
from hotloop.weights.model_file import ModelFile

OUTSIDE = "outside"

_TENSORS = {
    "qkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_qkv.weight"),
    "attn_output": ("attn_output.weight",),
    "gate_up": ("ffn_gate.weight", "ffn_up.weight"),
    "up": ("ffn_up.weight",),  # where there is no gate
    "ffn_down": ("ffn_down.weight",),
}


@dataclass(frozen=True, slots=True)
class KindShare:
    """One kind of op in a step. step_s: seconds per step. waiting_s: of these, what the average thread waited for
    others. read_bytes: weights or KV read per step."""

    kind: str
    num_ops: int
    step_s: float
    waiting_s: float
    read_bytes: int


def op_kinds(ops: Sequence[str]) -> list[str]:
    """The launches' names, with `linear` told apart by what it follows: attn_output, ffn_down, lm_head."""
    kinds = []
    source = ""
    for op in ops:
        if op == "linear":
            kinds.append({"attention": "attn_output", "gate_up": "ffn_down", "up": "ffn_down"}.get(source, "lm_head"))
        else:
            kinds.append(op)
        if op != "quantize":
            source = op
    return kinds


def weight_bytes_by_kind(model: Model, model_file: ModelFile) -> dict[str, int]:
    """Bytes of weights that each kind of op reads in a step."""
    by_kind = {
        kind: sum(t.nbytes for name, t in model_file.tensors.items() if name.startswith("blk.") and name.endswith(suffixes))
        for kind, suffixes in _TENSORS.items()
    }
    head = "token_embd.weight" if model.config.tied_embeddings else "output.weight"
    return {**by_kind, "lm_head": model_file.tensors[head].nbytes}


def profile_step(
    program: NativeProgram, batches: Sequence[ForwardBatch], read_bytes: Mapping[str, int]
) -> list[KindShare]:
    """Replay the batches with clocks; one entry per kind, the medians over the batches, and one for what is outside the
    program. read_bytes: by kind, per step."""
    profiles = []
    outside = []
    for batch in batches:
        started_s = time.perf_counter()
        profile = program.profile(batch)
        outside.append(time.perf_counter() - started_s - profile.elapsed_s.sum())
        profiles.append(profile)
    kinds = np.array(op_kinds(profiles[0].ops))
    elapsed_s = np.median([p.elapsed_s for p in profiles], axis=0)
    waiting_s = np.median([p.elapsed_s - p.busy_s.mean(axis=0) for p in profiles], axis=0)
    shares = [
        KindShare(
            str(kind), int((kinds == kind).sum()), float(elapsed_s[kinds == kind].sum()),
            float(waiting_s[kinds == kind].sum()), read_bytes.get(str(kind), 0),
        )
        for kind in dict.fromkeys(kinds)
    ]  # fmt: skip
    return [*shares, KindShare(OUTSIDE, 0, float(np.median(outside)), 0.0, 0)]


def profile_table(shares: Sequence[KindShare]) -> list[str]:
    """Lines of text, the largest share first."""
    total_s = sum(s.step_s for s in shares)
    lines = [f"{'op':<20}{'count':>6}{'ms':>10}{'share':>8}{'GB/s':>8}{'waiting':>9}{'us/op':>9}"]
    for s in sorted(shares, key=lambda s: -s.step_s):
        rate = f"{s.read_bytes / s.step_s / 1e9:.1f}" if s.read_bytes else ""
        per_op = f"{s.step_s / s.num_ops * 1e6:.1f}" if s.num_ops else ""
        lines.append(
            f"{s.kind:<20}{s.num_ops:>6}{s.step_s * 1e3:>10.3f}{s.step_s / total_s:>8.1%}{rate:>8}"
            f"{s.waiting_s / total_s:>9.1%}{per_op:>9}"
        )
    waiting_s = sum(s.waiting_s for s in shares)
    return [*lines, f"{'all':<26}{total_s * 1e3:>10.3f}{'':>16}{waiting_s / total_s:>9.1%}"]
