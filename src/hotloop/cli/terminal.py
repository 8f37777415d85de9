"""Text for a terminal."""

import sys
import unicodedata


def printable(text: str) -> str:
    """The text with control characters and lone surrogates escaped, lines kept.

    Names of files and tensors come from others; what they hold must not steer the terminal.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def show_answer(text: str) -> None:
    """Print a piece of a model's answer at once. On a terminal its control characters are left out, so that a model cannot
    steer the terminal; joiners of emoji and scripts stay. A pipe or file gets the text as it is."""
    if sys.stdout.isatty():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
    print(text, end="", flush=True)


def show_dimmed(is_dim: bool) -> None:
    """What is printed from here on is dimmed, or is as usual again; nothing changes in a pipe or file."""
    if sys.stdout.isatty():
        print("\x1b[2m" if is_dim else "\x1b[0m", end="", flush=True)
