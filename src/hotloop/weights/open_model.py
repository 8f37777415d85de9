"""open_model: the reader for what lies at a path."""

from pathlib import Path

from hotloop.weights.gguf import GGUFFile
from hotloop.weights.model_file import ModelFile


def open_model(path: str | Path) -> ModelFile:
    """The model at `path`, a GGUF file.

    Raises: ModelNotFoundError if nothing is there; ModelFileError naming the file and what is wrong with it.
    """
    return GGUFFile.open(path)
