"""`hotloop machine`: the ceilings of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from hotloop.cli import options as opt


def command(
    threads: opt.Threads = None,
    seconds: Annotated[float, typer.Option(min=0.05, max=60, help="How long to measure.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how fast this machine reads memory: the ceiling of decode."""
    import json
    from dataclasses import asdict

    from hotloop import _native
    from hotloop.config import EngineConfig
    from hotloop.machine import available_memory_bytes
    from hotloop.telemetry.ceilings import measure_read_bandwidth

    measured = measure_read_bandwidth(EngineConfig(threads=threads).num_threads, seconds)
    if as_json:
        print(
            json.dumps(
                {
                    **asdict(measured),
                    "isas": _native.usable_isas(),
                    "available_memory_bytes": available_memory_bytes(),
                }
            )
        )
        return
    print(
        f"read bandwidth  {measured.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s "
        f"(median of {measured.samples} samples, {measured.min_bytes_per_s / 1e9:.1f} to "
        f"{measured.max_bytes_per_s / 1e9:.1f}; {measured.threads} threads)\n"
        f"kernel sets     {', '.join(_kernel_sets())}\n"
        f"free memory     {available_memory_bytes() / 1e9:.1f} GB"
    )


def _kernel_sets() -> list[str]:
    """Usable kernel sets, best first, the experimental ones marked."""
    from hotloop import _native

    experimental = _native.experimental_isas()
    return [f"{isa} (experimental)" if isa in experimental else isa for isa in _native.usable_isas()]
