"""What a model writes must not steer the terminal."""

import pytest

from hotloop.cli import terminal

TEXT = "a\x1b[2Jb\tc\n\x07\x9b31m👩\u200d🚀\r"


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a[2Jb\tc\n31m👩\u200d🚀"), (False, TEXT)])
def test_answers_lose_control_characters_on_a_terminal_only(
    is_terminal: bool, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.sys.stdout, "isatty", lambda: is_terminal, raising=False)
    terminal.show_answer(TEXT)
    assert capsys.readouterr().out == shown


def test_printable_escapes_and_keeps_lines() -> None:
    assert terminal.printable("x\x1b\ny\ud800") == "x\\x1b\ny\\ud800"
