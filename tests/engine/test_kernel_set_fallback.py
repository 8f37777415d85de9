"""A kernel set that computes something else than scalar on this machine never reaches a token."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.engines import all_logits, assert_same_bits, make_runner
from hotloop import _native
from hotloop.ops import kernel_set
from tiny_models import random_tokens, write_tiny_model

USABLE = _native.usable_isas()
native_check = _native.self_check


@pytest.fixture
def broken_best_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of the best set, whose rms_norm now errs in one bit when it is checked."""
    best = USABLE[0]
    monkeypatch.setattr(_native, "self_check", lambda isa: native_check(isa, broken="rms_norm" if isa == best else ""))
    kernel_set.self_check.cache_clear()
    yield best
    kernel_set.self_check.cache_clear()


@pytest.mark.skipif(len(USABLE) == 1, reason="this machine has the scalar set only")
@pytest.mark.parametrize("forced", [False, True])
def test_the_next_set_runs_and_says_why(
    tmp_path: Path, broken_best_set: str, forced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", formats="Q4_0")
    with caplog.at_level(logging.WARNING):
        runner = make_runner(path, isa=broken_best_set if forced else "")
    assert runner.isa == runner.program().isa == USABLE[1]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert broken_best_set in messages[0]
    assert "rms_norm" in messages[0]
    tokens = random_tokens(20, 100)
    assert_same_bits(all_logits(runner, tokens), all_logits(make_runner(path, isa="scalar"), tokens))


def test_a_set_is_checked_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []

    def check(isa: str) -> str | None:
        checked.append(isa)
        return native_check(isa)

    monkeypatch.setattr(_native, "self_check", check)
    kernel_set.self_check.cache_clear()
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama", formats="Q4_0")
    for _ in range(3):
        make_runner(path)
    assert checked == USABLE[:1] if len(USABLE) > 1 else not checked
