"""What is compared: each side runs in processes of its own and answers with tokens per second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class SideError(Exception):
    """A side that cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Load:
    """batch requests with ``context`` tokens in the KV cache, each then decoding ``tokens`` tokens. Prefill is one
    request of ``prompt`` tokens."""

    context: int
    tokens: int
    prompt: int


class Side(Protocol):
    @property
    def name(self) -> str: ...

    def describe(self) -> str: ...

    def decode(self, model: Path, batch: int, load: Load) -> float:
        """Aggregate decode tokens per second. Raises SideError."""

    def prefill(self, model: Path, load: Load) -> float:
        """Prompt tokens per second. Raises SideError."""


def run(
    command: list[str], env: dict[str, str] | None = None, *, with_stderr: bool = False, folder: Path | None = None
) -> str:
    """What a command printed. folder: where it runs, and may leave its logs. Raises SideError with the end of it."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **(env or {})}, cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SideError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise SideError(f"{' '.join(command[:3])} ... failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout + done.stderr if with_stderr else done.stdout


@dataclass(frozen=True, slots=True)
class Hotloop:
    """isa: kernel set, "" for the best."""

    threads: int
    isa: str
    name: str = "hotloop"

    def describe(self) -> str:
        from hotloop import _native

        return f"kernels {self.isa or _native.usable_isas()[0]}, {self.threads} threads"

    def decode(self, model: Path, batch: int, load: Load) -> float:
        options = ["--batch", str(batch), "--context", str(load.context), "--tokens", str(load.tokens)]
        return float(self._bench("decode", model, options)["decode_tokens_per_s"])

    def prefill(self, model: Path, load: Load) -> float:
        return float(self._bench("prefill", model, ["--tokens", str(load.prompt)])["prefill_tokens_per_s"])

    def _bench(self, bench: str, model: Path, options: list[str]) -> dict[str, float]:
        command = [sys.executable, "-m", "hotloop.cli.main", "bench", bench, str(model), "--runs", "1", "--json"]
        out = run([*command, "--threads", str(self.threads), *options], {"HOTLOOP_ISA": self.isa})
        result: dict[str, float] = json.loads(out)
        return result
