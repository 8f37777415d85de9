"""Write a GGUF file: tiny models for tests, large random ones for benchmarks."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.quant.formats import WEIGHT_FORMATS
from hotloop.weights.gguf_header import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, NUMBERS, STRING

WritableValue = bool | int | float | str | np.generic | Sequence[str] | NDArray[Any]
WritableTensor = tuple[str, tuple[int, ...], bytes | NDArray[Any]]

_TYPE_IDS = {dtype: type_id for type_id, dtype in NUMBERS.items() if type_id != BOOL}


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, WritableValue],
    tensors: Mapping[str, WritableTensor],
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write a little-endian GGUF file, tensors in the order given.

    metadata: bool, str, list of str and numpy arrays and scalars (keeping their dtype) as they are; an int as
    u32, i32, u64 or i64, the first that holds it; a float as f32. `general.alignment` is added if
    `alignment` is not 32. tensors: name -> (format, shape in numpy order, data as stored: see
    hotloop.quant.formats.quantize).

    Raises: ValueError if the data of a tensor is not as long as its format and shape say; TypeError for a
    metadata value of another type.
    """
    shapes = {name: (format, shape) for name, (format, shape, _) in tensors.items()}
    header = gguf_header(metadata, shapes, version=version, alignment=alignment)
    contents = {name: np.frombuffer(data, np.uint8) for name, (_, _, data) in tensors.items()}
    for name, (format, shape) in shapes.items():
        if len(contents[name]) != (expected := WEIGHT_FORMATS[format].tensor_bytes(shape)):
            raise ValueError(f"tensor {name!r}: {format} of {shape} is {expected} bytes, not {len(contents[name])}")
    with Path(path).open("wb") as file:
        file.write(header)
        for content in contents.values():
            file.write(content.data)
            file.write(bytes(padded(len(content), alignment) - len(content)))


def gguf_header(
    metadata: Mapping[str, WritableValue],
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> bytes:
    """All of a GGUF file before its tensors' data, which follow in the same order, each padded to the alignment.

    tensors: name -> (format, shape in numpy order). Else as `write_gguf`.
    """
    if alignment != DEFAULT_ALIGNMENT:
        metadata = {**metadata, "general.alignment": alignment}
    header = [MAGIC, struct.pack("<IQQ", version, len(tensors), len(metadata))]
    header += [_string(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for name, (format, shape) in tensors.items():
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        header.append(_string(name) + dims + struct.pack("<IQ", WEIGHT_FORMATS[format].type_id, offset))
        offset += padded(WEIGHT_FORMATS[format].tensor_bytes(shape), alignment)
    joined = b"".join(header)
    return joined + bytes(padded(len(joined), alignment) - len(joined))


def padded(size: int, alignment: int = DEFAULT_ALIGNMENT) -> int:
    """The next multiple of the alignment."""
    return -(-size // alignment) * alignment


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: WritableValue) -> bytes:
    if isinstance(value, bool | np.bool_):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        value = _smallest(value) if isinstance(value, int) else np.float32(value)
    if isinstance(value, np.generic):
        return struct.pack("<I", _type_id(value.dtype)) + _little_endian(np.asarray(value))
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", ARRAY, _type_id(value.dtype), value.size) + _little_endian(value)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    raise TypeError(f"cannot write {value!r}: use bool, int, float, str, a list of str or a numpy array")


def _smallest(value: int) -> np.generic:
    for dtype in (np.uint32, np.int32, np.uint64, np.int64):
        if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            return dtype(value)
    raise ValueError(f"{value} does not fit 64 bits")


def _type_id(dtype: np.dtype[Any]) -> int:
    if dtype == np.bool_:
        return BOOL
    type_id = _TYPE_IDS.get(dtype.newbyteorder("<"))
    if type_id is None:
        raise TypeError(f"GGUF has no value type for {dtype}")
    return type_id


def _little_endian(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
