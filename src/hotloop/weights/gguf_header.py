"""Parse the header of one GGUF file: metadata and tensor entries, every length checked before it is used.

Layout (little-endian): magic "GGUF", version u32, tensor count u64, key count u64, the keys (string, value
type u32, value), the tensor entries (string, n_dims u32, dims u64 each, type id u32, offset u64), padding
to the alignment, then the tensor data that the offsets count from. A string is a u64 length and UTF-8
bytes. An array is an item type u32, a u64 count and the items. Source: the GGUF specification in the ggml
project (versions 2, 3).

Nothing is allocated on the word of the file: a count is believed only when that many items fit in the bytes
that are left, and the limits below bound the time that a well-formed but absurd file can take.
"""

import struct
from codecs import getincrementaldecoder
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hotloop.errors import ModelFileError
from hotloop.quant.formats import FORMATS_BY_TYPE_ID
from hotloop.weights.model_file import MetadataValue, TensorInfo, describe, quote

MAX_ENTRIES = 1 << 16
"""Most metadata keys, and most tensors, of one file."""
MAX_ARRAY_ITEMS = 1 << 24
"""Most items of one numeric array."""
MAX_STRINGS = 1 << 22
"""Most strings in all arrays of one file; the largest vocabularies have about 10^6 tokens and merges."""
MAX_STRING_BYTES = 1 << 26
MAX_ITEM_BYTES = 1 << 20
"""Most bytes of one string of an array."""
MAX_NAME_BYTES = (1 << 16) - 1
MAX_DIMS = 4
MIN_ALIGNMENT, DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 8, 32, 1 << 16

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_PREAMBLE_BYTES = 24
_PIECE_BYTES = 1 << 16
_MIN_KEY_BYTES = 8 + 1 + 4 + 1  # key length, key, value type, value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, n_dims, one dim, type id, offset

_utf8_decoder = getincrementaldecoder("utf-8")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS = {
    type_id: np.dtype(code)
    for type_id, code in enumerate(
        ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "u1", None, None, "<u8", "<i8", "<f8")
    )
    if code is not None
}


@dataclass(frozen=True, slots=True)
class Header:
    """What one GGUF file says about itself; tensor offsets count bytes from the start of the file. number_types: of the
    metadata that are one number."""

    version: int
    metadata: Mapping[str, MetadataValue]
    number_types: Mapping[str, np.dtype[Any]]
    tensors: Mapping[str, TensorInfo]
    offsets: Mapping[str, int]


def parse_header(buffer: mmap | bytes, path: str) -> Header:
    """Return the header of the GGUF file in `buffer`; `path` is for messages.

    Raises: ModelFileError naming the file and the key or tensor at fault.
    """
    return _Parser(buffer, path).parse()


class _Parser:
    def __init__(self, buffer: mmap | bytes, path: str) -> None:
        self._buffer = buffer
        self._size = len(buffer)
        self._path = path
        self._position = 0
        self._num_strings = 0

    def parse(self) -> Header:
        version, num_tensors, num_keys = self._preamble()
        self._check_count(num_keys, _MIN_KEY_BYTES, MAX_ENTRIES, "the header", "metadata keys")
        metadata: dict[str, MetadataValue] = {}
        number_types: dict[str, np.dtype[Any]] = {}
        for index in range(num_keys):
            key = self._name(f"metadata key {index} of {num_keys}")
            if key in metadata:
                self._fail(f"metadata key {quote(key)} appears twice")
            what = f"metadata key {quote(key)}"
            type_id = self._u32(what)
            metadata[key] = self._value(type_id, what)
            if type_id in NUMBERS and type_id != BOOL:
                number_types[key] = NUMBERS[type_id]
        alignment = self._alignment(metadata)
        self._check_count(num_tensors, _MIN_TENSOR_BYTES, MAX_ENTRIES, "the header", "tensors")
        tensors: dict[str, TensorInfo] = {}
        offsets: dict[str, int] = {}
        for index in range(num_tensors):
            name = self._name(f"tensor {index} of {num_tensors}")
            if name in tensors:
                self._fail(f"tensor {quote(name)} appears twice")
            tensors[name], offsets[name] = self._tensor(name)
        data_start = -(-self._position // alignment) * alignment
        self._check_layout(tensors, offsets, data_start, alignment)
        return Header(version, metadata, number_types, tensors, {name: data_start + at for name, at in offsets.items()})

    def _fail(self, message: str) -> NoReturn:
        raise ModelFileError(f"{self._path}: {message}")

    def _preamble(self) -> tuple[int, int, int]:
        magic = bytes(self._buffer[:4])
        if magic != MAGIC:
            self._fail(f"not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}")
        if self._size < _PREAMBLE_BYTES:
            self._fail(f"truncated: {self._size} bytes cannot hold a GGUF header; download the file again")
        self._position = 4
        version = self._u32("the version")
        if version not in _VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in range(1, 100):
                self._fail("this is a big-endian GGUF file; convert it to little-endian first")
            self._fail(f"GGUF version {version} is not supported (supported: 2, 3); convert the model again")
        return version, self._u64("the tensor count"), self._u64("the key count")

    def _take(self, num_bytes: int, what: str) -> int:
        """Advance over `num_bytes` that must be in the file, and return where they start."""
        start = self._position
        if num_bytes > self._size - start:
            self._fail(
                f"{what}: {num_bytes} bytes are needed at byte {start}, but the file ends at {self._size}: "
                "it is truncated or damaged; download it again"
            )
        self._position = start + num_bytes
        return start

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._buffer, self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._buffer, self._take(8, what))[0]
        return value

    def _check_count(self, count: int, min_item_bytes: int, limit: int, where: str, items: str) -> None:
        room = (self._size - self._position) // min_item_bytes
        if count > room:
            self._fail(f"{where} claims {count} {items}, but the file has room for at most {room}")
        if count > limit:
            self._fail(f"{where} has {count} {items}; the limit is {limit}")

    def _string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self._u64(what)
        if length > limit:
            self._fail(f"{what}: a string of {length} bytes; the limit is {limit}")
        start = self._take(length, what)
        # In pieces, so that a damaged length costs no more than the bytes up to the first that is not text.
        decoder = _utf8_decoder()
        pieces = []
        for at in range(start, self._position, _PIECE_BYTES):
            end = min(at + _PIECE_BYTES, self._position)
            pending = len(decoder.getstate()[0])
            try:
                pieces.append(decoder.decode(self._buffer[at:end], end == self._position))
            except UnicodeDecodeError as error:
                self._fail(f"{what}: invalid UTF-8 at byte {at - pending + error.start} of the file")
        return "".join(pieces)

    def _name(self, what: str) -> str:
        name = self._string(what, MAX_NAME_BYTES)
        if not name:
            self._fail(f"{what} has an empty name")
        return name

    def _value(self, type_id: int, what: str) -> MetadataValue:
        if type_id == STRING:
            return self._string(what)
        if type_id == ARRAY:
            return self._array(what)
        number = self._numbers(type_id, 1, what)[0]
        return bool(number) if type_id == BOOL else number.item()

    def _array(self, what: str) -> MetadataValue:
        type_id = self._u32(what)
        count = self._u64(what)
        if type_id == ARRAY:
            self._fail(f"{what}: nested arrays are not supported")
        if type_id == STRING:
            self._check_count(count, 8, MAX_STRINGS - self._num_strings, what, "strings")
            self._num_strings += count
            return self._strings(count, what)
        return self._numbers(type_id, count, what)

    def _numbers(self, type_id: int, count: int, what: str) -> NDArray[Any]:
        dtype = NUMBERS.get(type_id)
        if dtype is None:
            known = ", ".join(str(known) for known in sorted([*NUMBERS, STRING, ARRAY]))
            self._fail(f"{what}: unknown value type {type_id} (known: {known})")
        self._check_count(count, dtype.itemsize, MAX_ARRAY_ITEMS, what, "numbers")
        start = self._take(count * dtype.itemsize, what)
        # A copy: aligned, and independent of the mapping.
        values = np.frombuffer(self._buffer[start : self._position], dtype)
        if type_id == BOOL:
            if values.max(initial=0) > 1:
                self._fail(f"{what}: {values.max()} is not a boolean (0 or 1)")
            return values.astype(np.bool_)
        return values

    def _strings(self, count: int, what: str) -> list[str]:
        # The hot loop of opening a model: 10^5 to 10^6 strings. Everything is a local name.
        buffer, position, unpack = self._buffer, self._position, _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(count):
                length = unpack(buffer, position)[0]
                if length > MAX_ITEM_BYTES:
                    break
                start = position + 8
                end = start + length
                append(buffer[start:end].decode())
                position = end
        except (struct.error, UnicodeDecodeError):
            pass
        if position > self._size:  # the last slice was cut short
            strings.pop()
            position = start - 8
        if len(strings) < count:
            # Read the string at fault again, the slow way, for its error message.
            self._position = position
            self._string(f"{what}, item {len(strings)}", MAX_ITEM_BYTES)
            raise AssertionError("unreachable: the string was good the second time")
        self._position = position
        return strings

    def _alignment(self, metadata: Mapping[str, MetadataValue]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            self._fail(
                f"metadata key 'general.alignment' is {describe(alignment)}; it must be a power of two "
                f"from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
            )
        return alignment

    def _tensor(self, name: str) -> tuple[TensorInfo, int]:
        what = f"tensor {quote(name)}"
        num_dims = self._u32(what)
        if not 1 <= num_dims <= MAX_DIMS:
            self._fail(f"{what} has {num_dims} dimensions; 1 to {MAX_DIMS} are possible")
        dims = [self._u64(what) for _ in range(num_dims)]
        if 0 in dims:
            self._fail(f"{what} has a dimension of size 0: {dims}")
        type_id = self._u32(what)
        weight_format = FORMATS_BY_TYPE_ID.get(type_id)
        if weight_format is None:
            known = ", ".join(f"{known.type_id} {known.name}" for known in FORMATS_BY_TYPE_ID.values())
            self._fail(f"{what} has the unknown type id {type_id} (known: {known})")
        offset = self._u64(what)
        shape = tuple(reversed(dims))
        try:
            nbytes = weight_format.tensor_bytes(shape)
        except ValueError as error:
            self._fail(f"{what}: {error}")
        return TensorInfo(name, shape, weight_format.name, nbytes), offset

    def _check_layout(
        self, tensors: Mapping[str, TensorInfo], offsets: Mapping[str, int], data_start: int, alignment: int
    ) -> None:
        """Every tensor lies aligned inside the file, and no two share a byte."""
        previous, previous_end = "", 0
        for name in sorted(tensors, key=offsets.__getitem__):
            offset, nbytes = offsets[name], tensors[name].nbytes
            if offset % alignment:
                self._fail(f"tensor {quote(name)}: its offset {offset} is not a multiple of {alignment}")
            if offset < previous_end:
                self._fail(f"tensors {quote(previous)} and {quote(name)} overlap in the file")
            if data_start + offset + nbytes > self._size:
                self._fail(
                    f"tensor {quote(name)} of shape {tensors[name].shape} needs bytes "
                    f"{data_start + offset} to {data_start + offset + nbytes}, but the file ends at "
                    f"{self._size}: it is truncated or damaged; download it again"
                )
            previous, previous_end = name, offset + nbytes
