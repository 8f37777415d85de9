"""Fixtures of the kernel tests: every instruction set this machine can run."""

import pytest

from hotloop import _native

ISAS = _native.usable_isas()


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Name of a kernel set; the test runs once for each."""
    name: str = request.param
    return name
