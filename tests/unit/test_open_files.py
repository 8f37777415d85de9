"""The count of open files that other tests rely on."""

import gc
import os
from pathlib import Path

import pytest

from open_files import no_file_left_open


class Cycle:
    """An open file that only a collection of garbage closes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._me = self

    def __del__(self) -> None:
        os.close(self._descriptor)


def test_what_others_have_left_does_not_count(tmp_path: Path) -> None:
    gc.disable()
    try:
        Cycle(tmp_path)
        with no_file_left_open():
            gc.collect()  # as may happen at any time
        with pytest.raises(AssertionError), no_file_left_open():
            Cycle(tmp_path)
    finally:
        gc.enable()
        gc.collect()
