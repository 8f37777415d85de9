"""The bandwidth probe: samples come back and are plausible; how fast the machine is, is no test."""

import pytest

from hotloop import _native


@pytest.mark.parametrize("threads", [1, 2])
def test_returns_positive_samples(threads: int) -> None:
    samples = _native.measure_read_bandwidth(threads, 8 << 20, 0.01)
    assert len(samples) >= 3
    assert all(1e6 < s < 1e13 for s in samples)


@pytest.mark.parametrize("streams", [1, 2, 4, 8])
def test_each_access_pattern(streams: int) -> None:
    assert len(_native.measure_read_bandwidth(1, 4 << 20, 0.0, streams)) == 3


@pytest.mark.parametrize(("threads", "size", "streams"), [(0, 8 << 20, 8), (1, 100, 8), (1, 8 << 20, 3)])
def test_refuses_senseless_arguments(threads: int, size: int, streams: int) -> None:
    with pytest.raises(ValueError, match="measure_read_bandwidth"):
        _native.measure_read_bandwidth(threads, size, 0.01, streams)


@pytest.mark.parametrize("kind", ["int8", "f32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_peak_returns_positive_samples(isa: str, kind: str, threads: int) -> None:
    samples = _native.measure_peak(isa, kind, threads, 0.0)
    assert len(samples) >= 3
    assert all(1e6 < s < 1e15 for s in samples)


@pytest.mark.parametrize(("isa", "kind", "threads"), [("scalar", "int4", 1), ("scalar", "f32", 0), ("sse9", "f32", 1)])
def test_peak_refuses_senseless_arguments(isa: str, kind: str, threads: int) -> None:
    with pytest.raises(ValueError, match=r"measure_peak|not usable"):
        _native.measure_peak(isa, kind, threads, 0.0)
