"""The committed type stub of the extension module is what the generator writes."""

from importlib.resources import files

import pytest

from hotloop import _native


def test_the_stub_is_of_these_bindings() -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    generator = stubgen.StubGen(module=_native, quiet=True)
    generator.put(_native)
    written = (files("hotloop") / "_native.pyi").read_text()
    assert written == generator.get(), "the bindings have changed: run `make stub`"
