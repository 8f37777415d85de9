"""The safetensors files of a folder: all of them opened, checked against the index and against each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_json
from hotloop.weights.model_file import quote
from hotloop.weights.safetensors import SafetensorsFile, StoredTensor

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
MAX_SHARDS = 1000


@dataclass(frozen=True, slots=True)
class Shards:
    """The open files, in the order of their names, and all of their tensors by the files' names."""

    files: Sequence[SafetensorsFile]
    tensors: Mapping[str, StoredTensor]

    def close(self) -> None:
        for file in self.files:
            file.close()


def open_shards(folder: Path) -> Shards:
    """The weights in a folder: model.safetensors, or the shards that its index names.

    Raises: ModelFileError naming the file that is missing, short or malformed, the tensor that is in two shards or not in
    the one that the index names.
    """
    weight_map = _weight_map(folder)
    files: list[SafetensorsFile] = []
    tensors: dict[str, StoredTensor] = {}
    try:
        for name in sorted(set(weight_map.values())) or [SINGLE]:
            files.append(SafetensorsFile.open(folder / name))
            for tensor in files[-1].tensors.values():
                if (other := tensors.get(tensor.name)) is not None:
                    raise ModelFileError(
                        f"{folder}: tensor {quote(tensor.name)} is in two shards, {other.file.path.name} and {name}; "
                        f"download both again"
                    )
                tensors[tensor.name] = tensor
        for tensor_name, shard in weight_map.items():
            found = tensors.get(tensor_name)
            if found is None or found.file.path.name != shard:
                raise ModelFileError(
                    f"{folder / INDEX}: tensor {quote(tensor_name)} should be in {shard}, but is "
                    + (f"in {found.file.path.name}" if found else "in none of the shards")
                    + "; download index and shards again"
                )
    except BaseException:
        for file in files:
            file.close()
        raise
    return Shards(files, tensors)


def _weight_map(folder: Path) -> dict[str, str]:
    """Which shard each tensor is in; empty where there is one file only. All shards exist."""
    if os.path.lexists(folder / SINGLE):  # a broken link, too, is to be named
        return {}
    index = folder / INDEX
    if not index.is_file():
        raise ModelFileError(_no_weights(folder))
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: weight_map must map tensors to shards, not {weight_map!r:.60}")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard or PurePosixPath(shard).name != shard or "\0" in shard or "\\" in shard:
            raise ModelFileError(f"{index}: tensor {quote(tensor)} is in {shard!r:.60}, which names no file beside the index")
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_SHARDS:
        raise ModelFileError(f"{index}: it names {len(shards)} shards; {MAX_SHARDS} at most")
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        shown = ", ".join(quote(shard) for shard in missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ModelFileError(f"{folder}: {len(missing)} of {len(shards)} shards are missing: {shown}; download them")
    return weight_map


def _no_weights(folder: Path) -> str:
    others = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors"))[:3]
    beside = f"; it has {', '.join(others)}, which is not read from a folder" if others else ""
    return f"{folder}: there is no {SINGLE} and no {INDEX}{beside}; save the model with safetensors"
