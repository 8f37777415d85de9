import io
import json
import sys

import pytest

from hotloop.cli import main as cli
from hotloop.cli import models
from hotloop.weights.catalog import catalog, size_text
from hotloop.weights.resolve import NotPulledError

GGUF = b"GGUF" + b"\0" * 60


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hotloop", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return exit_.value.code


def test_list_of_an_empty_machine(machine, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "list") == 0
    assert "hotloop list --catalog" in capsys.readouterr().out
    assert run(monkeypatch, "list", "--json") == 0
    assert capsys.readouterr().out == "[]\n"


def test_list_shows_what_to_write_as_model(machine, monkeypatch, capsys) -> None:
    link = machine.add_hugging_face("a/b", "x.gguf", GGUF)
    assert run(monkeypatch, "list") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["MODEL", "SIZE", "WHERE"]
    assert row.split("  ") == ["hf:a/b/x.gguf", "0 MB", "Hugging Face cache"]
    assert run(monkeypatch, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"model": "hf:a/b/x.gguf", "bytes": 64, "where": "Hugging Face cache", "path": str(link)}
    ]


def test_names_of_files_cannot_steer_the_terminal(machine, monkeypatch, capsys) -> None:
    machine.add_hugging_face("a/b", "\x1b[2Jx\udcff.gguf", GGUF)
    machine.add_hugging_face("a/b", "y\nhf:a/z.gguf", GGUF)
    assert run(monkeypatch, "list") == 0
    out = capsys.readouterr().out
    assert "hf:a/b/\\x1b[2Jx\\udcff.gguf" in out
    assert "y\\nhf:a/z.gguf" in out  # nor make up a row


def test_list_of_the_catalog(machine, monkeypatch, capsys) -> None:
    machine.models.mkdir(parents=True)
    (machine.models / catalog()["smollm2-135m"].file).write_bytes(GGUF)
    assert run(monkeypatch, "list", "--catalog") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(catalog())
    assert [line.split()[0] for line in lines if line.endswith(" yes")] == ["smollm2-135m"]
    assert run(monkeypatch, "list", "--catalog", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows] == list(catalog())
    assert rows[0]["sampling"] == {"temperature": 0.2, "top_p": 0.9}
    assert all(row["bytes"] > 0 and row["parameters"] > 0 for row in rows)


def test_sizes_are_readable() -> None:
    assert size_text(98_362_432) == "98 MB"
    assert size_text(1_117_320_768, exact=False) == "~1.12 GB"


def test_pull_prints_the_path_alone_on_stdout(machine, monkeypatch, capsys) -> None:
    machine.models.mkdir(parents=True)
    path = machine.models / catalog()["smollm2-135m"].file
    path.write_bytes(GGUF)
    assert run(monkeypatch, "pull", "smollm2-135m") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{path}\n"
    assert "hotloop run smollm2-135m" in captured.err


def test_rm_says_what_it_freed(machine, monkeypatch, capsys) -> None:
    machine.models.mkdir(parents=True)
    path = machine.models / catalog()["smollm2-135m"].file
    path.write_bytes(bytes(3_000_000))
    assert run(monkeypatch, "rm", "smollm2-135m") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "removed smollm2-135m: 3 MB\n")
    assert not path.exists()
    assert run(monkeypatch, "rm", "smollm2-135m") == 1
    assert "is not on this machine" in capsys.readouterr().err


def test_pull_of_an_unknown_name_says_what_is_near(machine, monkeypatch, capsys) -> None:
    assert run(monkeypatch, "pull", "smollm2-135") == 1
    assert "did you mean smollm2-135m" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestOfferToPull:
    @pytest.fixture
    def pulled(self, machine, monkeypatch) -> list[str]:
        """Names that were pulled; nothing is downloaded."""
        names: list[str] = []
        monkeypatch.setattr(models, "pull_with_progress", lambda name: names.append(name) or machine.models / "x")
        return names

    def test_without_a_terminal_it_is_an_error(self, pulled) -> None:
        with pytest.raises(NotPulledError):
            models.require_model("smollm2-135m")
        assert pulled == []

    def test_yes_pulls(self, pulled) -> None:
        models.require_model("smollm2-135m", yes=True)
        assert pulled == ["smollm2-135m"]

    @pytest.mark.parametrize(("answer", "agreed"), [("\n", True), ("y\n", True), ("n\n", False)])
    def test_a_person_is_asked_with_the_size(self, pulled, monkeypatch, answer, agreed) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        monkeypatch.setattr(sys, "stderr", screen := Terminal())
        if agreed:
            models.require_model("smollm2-135m")
        else:
            with pytest.raises(NotPulledError):
                models.require_model("smollm2-135m")
        assert pulled == (["smollm2-135m"] if agreed else [])
        assert "Pull it (98 MB)?" in screen.getvalue()
