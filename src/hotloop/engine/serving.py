"""start_engine_process: from a model's name to an engine in a process of its own, and what its client's side needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.engine.loading import ConnectedEngine, engine_config, for_readers, input_processor
from hotloop.engine.recommended import recommended_sampling
from hotloop.engine.supervisor import SupervisedClient
from hotloop.telemetry.ceilings import read_ceiling
from hotloop.text.tokenizer import Tokenizer
from hotloop.weights.open_model import open_model
from hotloop.weights.resolve import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedEngine(ConnectedEngine):
    """An engine in a process of its own."""

    client: SupervisedClient


def start_engine_process(
    model: str | Path, options: Mapping[str, Any], *, watchdog_s: float, module: str = "hotloop.engine.worker"
) -> SupervisedEngine:
    """``model`` and ``options`` as `load_engine`. watchdog_s: an engine that has work and completes no step for so long is
    started again. module: that the process runs; tests have their own.

    Raises: as `load_engine`.
    """
    path = resolve(str(model))
    config = engine_config(for_readers({name: value for name, value in options.items() if value is not None}))
    ceiling = read_ceiling(config.num_threads)  # first: measuring takes memory that the weights are to have
    client = SupervisedClient(path, config, watchdog_s=watchdog_s, module=module)
    try:
        with open_model(path) as model_file:  # while the engine loads the weights
            tokenizer = Tokenizer.of_model(model_file)
            recommended = recommended_sampling(model, model_file)
        client.wait_until_ready()
        inputs = input_processor(path, tokenizer, recommended, client.info)
    except BaseException:
        client.close()
        raise
    return SupervisedEngine(path=path, inputs=inputs, client=client, ceiling_bytes_per_s=ceiling)
