"""Whether a test leaves files open."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = next(folder for folder in ("/proc/self/fd", "/dev/fd") if Path(folder).is_dir())


def num_open_files() -> int:
    """Of this process."""
    return len(os.listdir(_FOLDER))


@contextmanager
def no_file_left_open() -> Iterator[None]:
    """As many files must be open at the end of the block as before it: one that only garbage holds is left open, too."""
    gc.collect()  # not meanwhile, what other tests have left
    before = num_open_files()
    yield
    after = num_open_files()
    assert after == before, f"{before} files were open before, {after} are now"
