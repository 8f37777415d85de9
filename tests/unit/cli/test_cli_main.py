import io
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hotloop.cli import entry
from hotloop.cli import main as cli
from hotloop.errors import InvalidRequestError, ModelFileError, ModelNotFoundError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `hotloop ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["hotloop", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code


def add_command(monkeypatch: pytest.MonkeyPatch, raises: BaseException | None) -> None:
    """A command `stub MODEL`."""
    module = ModuleType("stub")

    def command(model: str) -> None:
        print("model is", model)
        if raises is not None:
            raise raises

    module.command = command
    monkeypatch.setitem(sys.modules, "stub", module)
    monkeypatch.setitem(cli.COMMANDS, "stub", ("stub", "A stub."))


def test_a_command_is_one_line_of_the_table(monkeypatch, capsys) -> None:
    add_command(monkeypatch, None)
    assert run(monkeypatch, "stub", "x") == 0
    assert capsys.readouterr().out == "model is x\n"
    assert run(monkeypatch, "--help") == 0
    assert ["stub", "A", "stub."] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("kind", [ModelNotFoundError, ModelFileError, InvalidRequestError])
def test_hotloop_errors_are_one_line_and_status_1(monkeypatch, capsys, kind) -> None:
    add_command(monkeypatch, kind("no model 'x': try y"))
    assert run(monkeypatch, "stub", "x") == 1
    assert capsys.readouterr().err == "hotloop: no model 'x': try y\n"


def test_control_characters_of_a_message_do_not_reach_the_terminal(monkeypatch, capsys) -> None:
    add_command(monkeypatch, ModelFileError("tensor \x1b[2J\x07é"))
    assert run(monkeypatch, "stub", "x") == 1
    assert capsys.readouterr().err == "hotloop: tensor \\x1b[2J\\x07é\n"


@pytest.mark.parametrize("line", ["stub", "stub x y", "stub x --nope", "nope", "--nope"])
def test_wrong_usage_is_status_2(monkeypatch, capsys, line) -> None:
    add_command(monkeypatch, None)
    assert run(monkeypatch, *line.split()) == 2
    captured = capsys.readouterr()
    assert "Usage: hotloop" in captured.err
    assert captured.out == ""


def test_interrupt_is_status_130_without_a_traceback(monkeypatch, capsys) -> None:
    add_command(monkeypatch, KeyboardInterrupt())
    assert run(monkeypatch, "stub", "x") == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_bug_keeps_its_traceback(monkeypatch) -> None:
    add_command(monkeypatch, ZeroDivisionError())
    monkeypatch.setattr(sys, "argv", ["hotloop", "stub", "x"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_every_command_of_the_table_has_help(monkeypatch, capsys) -> None:
    for name in cli.COMMANDS:
        assert run(monkeypatch, name, "--help") == 0
        assert f"Usage: hotloop {name}" in capsys.readouterr().out


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["list", "--catalog"], ["--help"]])
def test_closed_pipe_is_silent(arguments, unbuffered) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hotloop.cli.main", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--catalog"], ["pull", "--help"]])
def test_light_commands_import_nothing_heavy(arguments) -> None:
    code = "import sys; from hotloop.cli.main import main\ntry: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    heavy = {"numpy", "tokenizers", "huggingface_hub", "jinja2", "rich", "hotloop._native"}
    assert heavy & set(done.stderr.split()) == set()


def test_version(monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2.3")
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == "hotloop 1.2.3\n"
    assert run(monkeypatch) in (0, 2)  # no arguments: help
    assert "Commands:" in "".join(capsys.readouterr())


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "hotloop", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such command 'nonsense'" in done.stderr


def hotloop(arguments: str, redirection: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`hotloop ARGUMENTS` under a shell, with standard streams as it redirects them."""
    code = 'import sys; sys.argv[0] = "hotloop"; from hotloop.cli.main import main; main()'
    line = f"exec {sys.executable} -c '{code}' {arguments} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize("arguments", ["list --catalog", "pull no-such-model"])
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_are_no_traceback(arguments: str, redirection: str) -> None:
    done = hotloop(arguments, redirection)
    assert done.returncode == (0 if "list" in arguments else 1)
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_standard_output_is_one_line() -> None:
    done = hotloop("list --catalog", "> /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith(b"hotloop: ")
    assert done.stderr.count(b"\n") == 1


def test_characters_beyond_the_encoding_of_standard_output_are_replaced(monkeypatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    module = ModuleType("stub")
    module.command = lambda: print("d\u00e9j\u00e0")
    monkeypatch.setitem(sys.modules, "stub", module)
    monkeypatch.setitem(cli.COMMANDS, "stub", ("stub", "A stub."))
    assert run(monkeypatch, "stub") == 0
    assert output.buffer.getvalue() == b"d?j?\n"  # type: ignore[attr-defined]


def test_out_of_memory_is_one_line(monkeypatch, capsys) -> None:
    add_command(monkeypatch, MemoryError())
    assert run(monkeypatch, "stub", "x") == 1
    assert capsys.readouterr().err.startswith("hotloop: out of memory")


def test_nothing_slow_is_imported_before_ctrl_c_is_caught() -> None:
    code = "import sys; had = set(sys.modules); import hotloop.cli.entry; print(*sorted(set(sys.modules) - had))"
    env = {**os.environ, "PYTHONPATH": str(Path(entry.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "hotloop", "hotloop.cli", "hotloop.cli.entry"]


def test_interrupt_during_imports_is_status_130_without_a_traceback(monkeypatch, capsys) -> None:
    class Interrupting:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "typer":
                raise KeyboardInterrupt

    for name in [name for name in sys.modules if name == "hotloop.cli.main" or name.split(".")[0] == "typer"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as exit_:
        entry.main()
    assert exit_.value.code == 130
    assert capsys.readouterr().err == ""
