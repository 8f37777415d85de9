"""system_fingerprint names what an answer depends on, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.config import EngineConfig
from hotloop.engine import fingerprint
from hotloop.engine.fingerprint import system_fingerprint


def test_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    first, same, other = (tmp_path / name for name in ("first", "same", "other"))
    first.write_bytes(b"weights")
    same.write_bytes(b"weights")
    other.write_bytes(b"others!")
    config = EngineConfig()
    name = system_fingerprint(first, config)
    assert name.startswith("fp_")
    assert int(name[3:], 16) < 16**12
    more = replace(config, max_num_seqs=1, block_size=8, threads=1, isa="scalar", max_model_len=5)
    assert name == system_fingerprint(first, config) == system_fingerprint(same, more)
    names = {name, system_fingerprint(other, config)}
    names |= {system_fingerprint(first, replace(config, kv_dtype=kv)) for kv in ("f32", "bf16", "int8")}
    names.add(system_fingerprint(first, replace(config, activations="f32")))
    monkeypatch.setattr(fingerprint, "ARITHMETIC_VERSION", fingerprint.ARITHMETIC_VERSION + 1)
    names.add(system_fingerprint(first, config))
    assert len(names) == 7


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path / "home"))
    path = tmp_path / "weights"
    path.write_bytes(b"a")
    before = system_fingerprint(path, EngineConfig())
    path.write_bytes(b"ab")
    assert system_fingerprint(path, EngineConfig()) != before
