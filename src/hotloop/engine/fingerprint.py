"""system_fingerprint: names what an answer depends on beside its request."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hotloop.config import EngineConfig
from hotloop.weights.cache import remembered_sha256
from hotloop.weights.open_model import open_model
from hotloop.weights.quantization import QUANTIZATIONS

ARITHMETIC_VERSION = 1  # raised with every change that changes any bit of any answer


def system_fingerprint(path: Path, config: EngineConfig) -> str:
    """Two engines with the same fingerprint answer a request, seed included, with the same bits.

    path: of the model. Reads the whole of its files where their hashes are not remembered.
    """
    with open_model(path) as model_file:
        hashes = [remembered_sha256(part) for part in model_file.paths]
    parts = [str(ARITHMETIC_VERSION), *hashes, config.kv_dtype, config.activations]
    if config.quantize is not None:
        parts.append(QUANTIZATIONS[config.quantize].name)
    return "fp_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
