"""The MODEL argument of every command: resolved to a file, with the offer to pull what is missing."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.weights.resolve import NotPulledError, resolve

if TYPE_CHECKING:
    from hotloop.weights.pull import Source


def require_model(model: str, *, yes: bool = False) -> Path:
    """The file MODEL means; what is known but not here is pulled if `yes` or if the user agrees.

    Raises ModelNotFoundError, DownloadError.
    """
    try:
        return resolve(model)
    except NotPulledError:
        if not yes and not _agrees_to_pull(model):
            raise
    return pull_with_progress(model)


def pull_with_progress(model: str, source: "Source" = "auto") -> Path:
    """`weights.pull` with its notes and progress bar on stderr."""
    from hotloop.cli.progress import TerminalReporter
    from hotloop.weights.pull import pull

    with TerminalReporter() as reporter:
        return pull(model, source, reporter)


def _agrees_to_pull(model: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    import typer

    from hotloop.weights.catalog import catalog

    entry = catalog().get(model.lower())
    size = f" ({entry.size_text})" if entry is not None else ""
    return typer.confirm(f"{model} is not on this machine. Pull it{size}?", default=True, err=True)
