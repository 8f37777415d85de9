"""Where the `hotloop` command begins: imports take longest of all, and Ctrl-C meanwhile is no traceback either."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """`main.main`, or status 130 if Ctrl-C comes before it is there."""
    try:
        from hotloop.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
