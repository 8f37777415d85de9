"""open_model: the reader for what lies at a path."""

from pathlib import Path

from hotloop.weights.gguf import GGUFFile
from hotloop.weights.model_file import ModelFile


def open_model(path: str | Path) -> ModelFile:
    """The model at `path`: a folder with config.json and safetensors, or a GGUF file.

    Raises: ModelNotFoundError if nothing is there; ModelFileError naming the file and what is wrong with it.
    """
    path = Path(path)
    if path.is_dir():
        from hotloop.weights.hf.folder import HFFolder  # which few starts need

        return HFFolder.open(path)
    return GGUFFile.open(path)


def model_name(path: Path) -> str:
    """What to call the model at a path that `resolve` found: a folder's name, or a file's without .gguf."""
    return path.name if path.is_dir() else path.stem
