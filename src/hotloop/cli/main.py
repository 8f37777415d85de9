"""The `hotloop` command: a table of commands whose modules are imported when they are called.

A command is a module with a function `command` (typer annotations), or with an `app` of several such; it raises
HotloopErrors and imports what is slow inside the function. Its line below is all that `hotloop --help` needs.
"""

import io
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from hotloop.cli.terminal import printable
from hotloop.errors import HotloopError

# name: (module, one line of help)
COMMANDS = {
    "run": ("hotloop.cli.run", "Answer a question, or complete a text."),
    "chat": ("hotloop.cli.chat", "Chat with a model."),
    "serve": ("hotloop.cli.serve", "Serve a model to OpenAI clients."),
    "batch": ("hotloop.cli.batch", "Answer a file of OpenAI batch requests."),
    "pull": ("hotloop.cli.pull", "Download a model (go on with it), or check a local one."),
    "rm": ("hotloop.cli.rm", "Delete a pulled model."),
    "quantize": ("hotloop.cli.quantize", "Write a model in fewer bits."),
    "check": ("hotloop.cli.check", "Test that this machine computes a model right."),
    "inspect": ("hotloop.cli.inspect_model", "Show what is in a model file and what it needs."),
    "bench": ("hotloop.cli.bench", "Measure a model on this machine, or a server under load."),
    "machine": ("hotloop.cli.machine", "Measure this machine's read bandwidth."),
    "list": ("hotloop.cli.list_models", "List the models on this machine, or the catalog."),
}


class LazyGroup(TyperGroup):
    """A command group that imports a command's module only when that command runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        if hasattr(module, "app"):
            return typer.main.get_command(module.app)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name=cmd_name)(module.command)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"hotloop {version('hotloop')}")
        raise typer.Exit


@app.callback()
def _group(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Run language models from GGUF files, fast and reproducibly."""


def _prepare_standard_streams() -> None:
    """Streams that the caller closed become empty ones, and no character is beyond the terminal's encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  (open for the whole process)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def main() -> NoReturn:
    """Exit status: 0, 1 for an error or a closed pipe, 2 for wrong usage, 130 for Ctrl-C."""
    _prepare_standard_streams()
    try:
        status = typer.main.get_command(app).main(prog_name="hotloop", standalone_mode=False)
        sys.stdout.flush()
    except HotloopError as error:
        print(f"hotloop: {printable(str(error))}", file=sys.stderr)
        status = 1
    except MemoryError:
        print("hotloop: out of memory; free some, or raise this process's limit", file=sys.stderr)
        status = 1
    except (KeyboardInterrupt, typer.Abort):
        print(file=sys.stderr)
        status = 128 + signal.SIGINT
    except OSError as error:  # standard output cannot be written: nobody reads on, or the disk is full
        if not isinstance(error, BrokenPipeError):
            print(f"hotloop: {printable(str(error))}", file=sys.stderr)
        # Python flushes stdout once more at exit; it must find nobody to complain to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1  # as click does where it sees the closed pipe first
    except Exception as error:
        show = getattr(error, "show", None)  # a usage error, of typer's click or of click itself
        if show is None:
            raise
        show()
        status = getattr(error, "exit_code", 2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
