"""What a run under load comes to. Field names, units and meanings: telemetry/schema.toml, bench_serve."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from hotloop.bench.serving.answers import Answer
from hotloop.bench.serving.load import Run

_PERCENTILES = (50, 90, 95, 99)
_DEFINED = ("ttft_s", "itl_s", "tpot_s", "e2e_s", "tokens_per_s", "goodput_requests_per_s")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a good answer keeps to; None: anything does."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def allow(self, answer: Answer) -> bool:
        tpot_s = answer.tpot_s
        return (self.ttft_s is None or answer.ttft_s <= self.ttft_s) and (
            self.tpot_s is None or tpot_s is None or tpot_s <= self.tpot_s
        )


NO_LIMITS = Limits()


def figures(run: Run, limits: Limits) -> dict[str, Any]:
    """The part of the JSON object that was measured."""
    done = [answer for answer in run.answers if answer.error is None]
    duration_s = run.duration_s
    tokens = sum(a.tokens for a in done)
    events = sum(len(a.events_s) for a in done)
    num_good = sum(map(limits.allow, done))
    return {
        "num_completed": len(done),
        "num_failed": len(run.answers) - len(done),
        "failures": dict(Counter(a.error for a in run.answers if a.error is not None).most_common(5)),
        "duration_s": duration_s,
        "is_streamed": all(a.is_streamed for a in done),
        "has_usage": all(a.has_usage for a in done),
        "prompt_tokens_mean": _mean(a.prompt_tokens for a in done),
        "cached_tokens_mean": _mean(a.cached_tokens for a in done),
        "output_tokens_mean": _mean(a.tokens for a in done),
        "tokens_per_event": tokens / events if events else None,
        "tokens_per_s": tokens / duration_s,
        "requests_per_s": len(done) / duration_s,
        "goodput_requests_per_s": num_good / duration_s,
        "good_share": num_good / len(run.answers),
        "ttft_s": distribution([a.ttft_s for a in done]),
        "itl_s": distribution([gap for a in done for gap in a.itl_s]),
        "tpot_s": distribution([tpot_s for a in done if (tpot_s := a.tpot_s) is not None]),
        "e2e_s": distribution([a.e2e_s for a in done]),
        "client_cpu_s": run.cpu_s,
    }


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles (linear between values) and maximum; None of nothing."""
    if not values:
        return None
    percentiles = np.percentile(values, _PERCENTILES).tolist()
    return {
        "mean": float(np.mean(values)),
        **{f"p{p}": value for p, value in zip(_PERCENTILES, percentiles, strict=True)},
        "max": max(values),
    }


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def table(result: dict[str, Any]) -> list[str]:
    """Lines of text."""
    lines = [
        f"completed {result['num_completed']}, failed {result['num_failed']}, in {result['duration_s']:.2f} s; "
        f"tokens: prompt {_count(result['prompt_tokens_mean'])} (cached {_count(result['cached_tokens_mean'])}), "
        f"output {_count(result['output_tokens_mean'])}",
        *(f"failed {count} times: {text}" for text, count in result["failures"].items()),
        f"aggregate {result['tokens_per_s']:.1f} tokens/s, {result['requests_per_s']:.2f} requests/s, goodput "
        f"{result['goodput_requests_per_s']:.2f} requests/s ({result['good_share']:.0%})",
        f"{'ms':<8}" + "".join(f"{name:>10}" for name in ("mean", *(f"p{p}" for p in _PERCENTILES), "max")),
    ]
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        values = result[name]
        cells = "".join(f"{1e3 * value:>10.2f}" for value in values.values()) if values else f"{'-':>10}"
        lines.append(f"{name.removesuffix('_s'):<8}{cells}")
    if not result["is_streamed"]:
        lines.append("not streamed: TTFT is E2E, and there are no ITL and TPOT")
    if not result["has_usage"]:
        lines.append("no usage: events with text are counted as tokens")
    return lines


def _count(mean: float | None) -> str:
    return "unknown" if mean is None else f"{mean:.1f}".removesuffix(".0")


def definitions() -> list[str]:
    """One line for each figure of the table, from the schema."""
    fields = tomllib.loads((files("hotloop.telemetry") / "schema.toml").read_text())["bench_serve"]
    return [f"{name}: {fields[name]}" for name in _DEFINED]
