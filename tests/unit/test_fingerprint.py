"""system_fingerprint names what an answer depends on, and nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop.config import EngineConfig
from hotloop.engine import fingerprint
from hotloop.engine.fingerprint import system_fingerprint
from hotloop.weights.gguf_writer import write_gguf
from tiny_models import write_tiny_model


def test_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    first, same, other = (tmp_path / f"{name}.gguf" for name in ("first", "same", "other"))
    for path, seed in ((first, 0), (same, 0), (other, 1)):
        write_tiny_model(path, seed=seed)
    config = EngineConfig()
    name = system_fingerprint(first, config)
    assert name.startswith("fp_")
    assert int(name[3:], 16) < 16**12
    more = replace(config, max_num_seqs=1, block_size=8, threads=1, isa="scalar", max_model_len=5)
    assert name == system_fingerprint(first, config) == system_fingerprint(same, more)
    names = {name, system_fingerprint(other, config)}
    names |= {system_fingerprint(first, replace(config, kv_dtype=kv)) for kv in ("f32", "bf16", "int8")}
    names.add(system_fingerprint(first, replace(config, activations="f32")))
    names |= {system_fingerprint(first, replace(config, quantize=to)) for to in ("q4_k", "q4_k_m", "q8_0")}  # two
    monkeypatch.setattr(fingerprint, "ARITHMETIC_VERSION", fingerprint.ARITHMETIC_VERSION + 1)
    names.add(system_fingerprint(first, config))
    assert len(names) == 9


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    path = write_tiny_model(tmp_path / "model.gguf")
    before = system_fingerprint(path, EngineConfig())
    write_tiny_model(path, num_layers=1)
    assert system_fingerprint(path, EngineConfig()) != before


def test_every_part_of_a_split_model_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    names = set()
    for fill in (0, 1):
        for number, part in enumerate(parts):
            split = {"split.no": np.uint16(number), "split.count": np.uint16(2)}
            write_gguf(part, split, {f"t{number}": ("F32", (8,), np.full(8, fill * number, np.float32))})
        names |= {system_fingerprint(part, EngineConfig()) for part in parts}
    assert len(names) == 2
