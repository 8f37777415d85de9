"""Text for a terminal."""


def printable(text: str) -> str:
    """The text with control characters and lone surrogates escaped, lines kept.

    Names of files and tensors come from others; what they hold must not steer the terminal.
    """
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
