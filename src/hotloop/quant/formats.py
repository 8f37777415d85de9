"""The table of weight formats: how many bits, in groups of how many elements, in how many bytes.

One table serves everyone who needs a format's name, ggml type id or size: the GGUF reader, `inspect`, the
loader and the traffic accounting. Formats that hotloop can only name and size (no codec, no kernel) are in it
too, so that a file that uses them can be described instead of rejected as garbage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the elements of a row are stored.

    A row is a whole number of superblocks, stored one after the other. A superblock is the smallest unit that
    can be read by itself; it holds one or more groups, and the elements of a group share one scale (and one
    zero point or minimum where the format has one). Most formats have one group per superblock.

    name: the name in the GGUF world, for example "Q4_K".
    type_id: the ggml type id, as stored in a GGUF tensor entry.
    group_size: elements that share one scale; 1 for formats without scales.
    superblock_size: elements per superblock; a row length must be a multiple of it.
    superblock_bytes: bytes per superblock.
    """

    name: str
    type_id: int
    group_size: int
    superblock_size: int
    superblock_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per element, scales included."""
        return 8 * self.superblock_bytes / self.superblock_size

    def row_bytes(self, row_size: int) -> int:
        """Bytes of a row of `row_size` elements. Raises ValueError unless it is whole superblocks."""
        if row_size % self.superblock_size:
            raise ValueError(
                f"a row of {row_size} elements is not a multiple of {self.superblock_size}, "
                f"the superblock of {self.name}"
            )
        return row_size // self.superblock_size * self.superblock_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape` (numpy order, rows last axis). Raises ValueError like `row_bytes`."""
        return prod(shape[:-1]) * self.row_bytes(shape[-1])


# name, type id, group_size, superblock_size, superblock_bytes. Source: the ggml type enumeration.
_TABLE = (
    ("F32", 0, 1, 1, 4),
    ("F16", 1, 1, 1, 2),
    ("Q4_0", 2, 32, 32, 18),
    ("Q4_1", 3, 32, 32, 20),
    ("Q5_0", 6, 32, 32, 22),
    ("Q5_1", 7, 32, 32, 24),
    ("Q8_0", 8, 32, 32, 34),
    ("Q8_1", 9, 32, 32, 36),
    ("Q2_K", 10, 16, 256, 84),
    ("Q3_K", 11, 16, 256, 110),
    ("Q4_K", 12, 32, 256, 144),
    ("Q5_K", 13, 32, 256, 176),
    ("Q6_K", 14, 16, 256, 210),
    ("Q8_K", 15, 256, 256, 292),
    ("IQ2_XXS", 16, 32, 256, 66),
    ("IQ2_XS", 17, 16, 256, 74),
    ("IQ3_XXS", 18, 32, 256, 98),
    ("IQ1_S", 19, 32, 256, 50),
    ("IQ4_NL", 20, 32, 32, 18),
    ("IQ3_S", 21, 32, 256, 110),
    ("IQ2_S", 22, 16, 256, 82),
    ("IQ4_XS", 23, 32, 256, 136),
    ("I8", 24, 1, 1, 1),
    ("I16", 25, 1, 1, 2),
    ("I32", 26, 1, 1, 4),
    ("I64", 27, 1, 1, 8),
    ("F64", 28, 1, 1, 8),
    ("IQ1_M", 29, 16, 256, 56),
    ("BF16", 30, 1, 1, 2),
    ("TQ1_0", 34, 256, 256, 54),
    ("TQ2_0", 35, 256, 256, 66),
    ("MXFP4", 39, 32, 32, 17),
    ("NVFP4", 40, 16, 64, 36),
    ("Q1_0", 41, 128, 128, 18),
)

WEIGHT_FORMATS: Mapping[str, WeightFormat] = MappingProxyType({row[0]: WeightFormat(*row) for row in _TABLE})
"""Every format hotloop can name and size, by name."""

FORMATS_BY_TYPE_ID: Mapping[int, WeightFormat] = MappingProxyType(
    {weight_format.type_id: weight_format for weight_format in WEIGHT_FORMATS.values()}
)
"""The same formats by ggml type id."""
