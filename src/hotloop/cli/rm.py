"""`hotloop rm MODEL`: delete what `hotloop pull` has fetched."""

import sys
from typing import Annotated

import typer


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="A catalog name or hf:owner/repo[@revision][/file], as `list` shows it."
        ),
    ],
) -> None:
    """Delete models from hotloop's folder, what unfinished pulls have left of them included.

    Files of other programs (the Hugging Face cache, Ollama's, your own) are left alone.
    """
    from hotloop.cli.progress import TerminalReporter
    from hotloop.weights.catalog import size_text
    from hotloop.weights.remove import remove

    with TerminalReporter() as reporter:
        for model in models:
            freed = remove(model, reporter)
            print(f"removed {model}: {size_text(freed)}", file=sys.stderr)
