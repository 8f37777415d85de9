"""openvino-genai in an environment of its own. Its continuous batching reads GGUF files of some formats directly.

As a script (run by that environment's python): MODEL BATCH CONTEXT TOKENS THREADS -> seconds of the first step that
computes all prompts, and of the decode steps, as two words.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sides import Load


@dataclass(frozen=True, slots=True)
class OpenVino:
    """model: folder of a model in OpenVINO's own format, measured instead of the GGUF files; None: the GGUF files."""

    python: Path
    threads: int
    isa: str
    model: Path | None
    name: str = "openvino"

    def describe(self) -> str:
        from sides import run

        command = [str(self.python), "-c", "import openvino_genai; print(openvino_genai.__version__)"]
        return f"openvino-genai {run(command).strip()}, {self.threads} threads"

    def decode(self, model: Path, batch: int, load: Load) -> float:
        return batch * load.tokens / self._measure(model, batch, load.context, load.tokens)[1]

    def prefill(self, model: Path, load: Load) -> float:
        return load.prompt / self._measure(model, 1, load.prompt, 1)[0]

    def _measure(self, model: Path, batch: int, context: int, tokens: int) -> tuple[float, float]:
        from sides import run

        # The plugin takes its instruction set from its copy of oneDNN.
        env = {"ONEDNN_MAX_CPU_ISA": "AVX2"} if self.isa == "avx2" else {}
        arguments = [str(self.model or model), *(str(n) for n in (batch, context, tokens, self.threads))]
        prompts_s, decode_s = run([str(self.python), __file__, *arguments], env).split()[-2:]
        return float(prompts_s), float(decode_s)


def install(work: Path) -> Path:
    """The python of an environment that has openvino-genai."""
    python = work / "openvino-env" / "bin" / "python"
    if not list(python.parent.parent.glob("lib/*/site-packages/openvino_genai")):
        subprocess.run([sys.executable, "-m", "venv", str(work / "openvino-env")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "openvino-genai", "numpy"], check=True)
    return python


def measure(model: str, batch: int, context: int, tokens: int, threads: int) -> tuple[float, float]:
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2  # GB
    scheduler.max_num_batched_tokens = max(batch * context, 512)
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {}, {"INFERENCE_NUM_THREADS": threads})
    config = genai.GenerationConfig()
    config.ignore_eos = True
    rng = np.random.default_rng(0)

    def one_round(max_new_tokens: int) -> list[float]:
        config.max_new_tokens = max_new_tokens
        prompts = rng.integers(300, 3000, (batch, 1, context))
        handles: list[Any] = [pipeline.add_request(i, openvino.Tensor(p), config) for i, p in enumerate(prompts)]
        steps_s = []
        while pipeline.has_non_finished_requests():
            started_s = time.perf_counter()
            pipeline.step()
            steps_s.append(time.perf_counter() - started_s)
        for handle in handles:  # a request whose handle is gone is dropped
            assert sum(len(part.generated_ids) for part in handle.read_all()) == max_new_tokens
        return steps_s

    one_round(2)  # warm-up
    steps_s = one_round(tokens + 1)
    assert len(steps_s) >= tokens + 1, f"{len(steps_s)} steps for {tokens + 1} tokens"
    return sum(steps_s[:-tokens]), sum(steps_s[-tokens:])


if __name__ == "__main__":
    print(*measure(sys.argv[1], *map(int, sys.argv[2:])))
