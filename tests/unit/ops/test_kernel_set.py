"""The choice of a kernel set: forced, checked, replaced by the next one with a warning."""

import logging

import pytest

from hotloop import _native
from hotloop.errors import InvalidRequestError
from hotloop.ops.kernel_set import choose_kernel_set, self_check

USABLE = _native.usable_isas()
FAST = USABLE[:-1]  # all but scalar


def test_scalar_is_always_there_and_last() -> None:
    assert USABLE[-1] == "scalar"
    assert len(set(USABLE)) == len(USABLE)


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("seed", range(1, 6))
def test_every_set_passes_its_check(isa: str, seed: int) -> None:
    assert _native.self_check(isa, seed=seed) is None


@pytest.mark.parametrize("isa", USABLE)
@pytest.mark.parametrize("kernel", ["linear", "rms_norm", "exp"])
def test_one_wrong_bit_is_found_and_named(isa: str, kernel: str) -> None:
    differs = _native.self_check(isa, broken=kernel)
    assert differs is not None
    assert differs.startswith(kernel)


def test_the_message_names_format_and_case() -> None:
    assert _native.self_check("scalar", broken="linear") == "linear Q6_K, 2 tokens"


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="usable"):
        _native.self_check("avx9")
    with pytest.raises(ValueError, match="no broken kernel 'add'"):
        _native.self_check("scalar", broken="add")


def test_the_best_set_is_chosen_and_checked() -> None:
    checked: list[str] = []

    def check(isa: str) -> None:
        checked.append(isa)

    assert choose_kernel_set("", check) == USABLE[0]
    assert checked == FAST[:1]


def test_a_forced_set_is_chosen() -> None:
    for isa in USABLE:
        assert choose_kernel_set(isa) == isa


def test_an_unusable_set_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"'avx9'.*usable: .*scalar"):
        choose_kernel_set("avx9")


@pytest.mark.skipif(not FAST, reason="this machine has the scalar set only")
def test_a_broken_set_is_replaced_by_the_next_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    best = USABLE[0]

    def check(isa: str) -> str | None:
        return _native.self_check(isa, broken="rms_norm") if isa == best else self_check(isa)

    with caplog.at_level(logging.WARNING):
        assert choose_kernel_set("", check) == USABLE[1]
        assert choose_kernel_set(best, check) == USABLE[1]
    assert len(caplog.records) == 2
    for word in (best, "rms_norm", USABLE[1]):
        assert word in caplog.records[0].getMessage()


def test_scalar_remains_when_all_others_fail(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose_kernel_set("", lambda isa: _native.self_check(isa, broken="exp")) == "scalar"
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == FAST


def test_experimental_sets_are_named() -> None:
    assert _native.experimental_isas() == ["neon"]
