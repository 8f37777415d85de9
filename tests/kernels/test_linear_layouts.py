"""Repacked bytes against the diagrams of docs/weight-layouts.md, read by an implementation of their own."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop.quant.codecs import IQ4_CODEBOOK, MXFP4_CODEBOOK
from hotloop.quant.formats import WEIGHT_FORMATS, unpack
from kernels.linear_cases import INTEGER_FORMATS, random_weights

Bytes = NDArray[np.uint8]
Codes = NDArray[np.int64]

# Where bit b of the codes of register j lies: PLACES[width][j][b] = (stored register, bit of the byte).
PLACES: dict[int, list[list[tuple[int, int]]]] = {
    2: [[(j // 4, 2 * (j % 4) + b) for b in range(2)] for j in range(8)],
    3: [
        *[[(j % 3, 3 * (j // 3) + b) for b in range(3)] for j in range(6)],
        [(0, 6), (0, 7), (2, 6)],
        [(1, 6), (1, 7), (2, 7)],
    ],
    4: [[(j % 4, 4 * (j // 4) + b) for b in range(4)] for j in range(8)],
    5: [
        *[[(j, b) for b in range(5)] for j in range(5)],
        [(0, 5), (0, 6), (0, 7), (3, 5), (3, 6)],
        [(1, 5), (1, 6), (1, 7), (4, 5), (3, 7)],
        [(2, 5), (2, 6), (2, 7), (4, 6), (4, 7)],
    ],
    6: [
        *[[(j, b) for b in range(6)] for j in range(6)],
        [(0, 6), (0, 7), (1, 6), (1, 7), (2, 6), (2, 7)],
        [(3, 6), (3, 7), (4, 6), (4, 7), (5, 6), (5, 7)],
    ],
    8: [[(j, b) for b in range(8)] for j in range(8)],
}


@pytest.mark.parametrize("width", PLACES)
def test_every_stored_bit_has_one_meaning(width: int) -> None:
    places = [place for register in PLACES[width] for place in register]
    assert sorted(places) == [(stored, bit) for stored in range(width) for bit in range(8)]


def codes_of(stored: Bytes, width: int) -> Codes:
    """Stored registers, uint8 [32 width] -> codes [row, k]."""
    registers = stored.reshape(width, 8, 4).astype(np.int64)  # [register, row, i], k = 4j + i
    codes = [
        sum((registers[at] >> bit & 1) << b for b, (at, bit) in enumerate(place)) for place in PLACES[width]
    ]
    return np.stack(codes, axis=1).reshape(8, 32)


def six_bits(stream: Bytes) -> Codes:
    """A stream of 6-bit numbers, the first in the lowest bits."""
    bits = np.unpackbits(stream, bitorder="little").reshape(-1, 6)
    return (bits.astype(np.int64) << np.arange(6)).sum(axis=1)


def scale_min_bytes(stored: Bytes) -> tuple[Codes, Codes]:
    """The 12 bytes of Q4_K and Q5_K -> scales [row], mins [row]."""
    wide = stored.astype(np.int64)
    nibbles = np.stack([wide[8:] & 15, wide[8:] >> 4], axis=1).reshape(8)
    return wide[:8] & 63, wide[:8] >> 6 | nibbles << 2


@dataclass(frozen=True, slots=True)
class Layout:
    """header: bytes before the first group. group: bytes from a group to the next. start: of its codes there."""

    width: int
    header: int
    group: int
    start: int = 0
    code: Callable[[Codes], Codes] = lambda q: q


LAYOUTS = {
    "Q4_0": Layout(4, 0, 144, 16, lambda q: q - 8),
    "Q4_1": Layout(4, 0, 160, 32),
    "Q5_0": Layout(5, 0, 176, 16, lambda q: q - 16),
    "Q5_1": Layout(5, 0, 192, 32),
    "Q8_0": Layout(8, 0, 272, 16, lambda q: (q + 128) % 256 - 128),
    "IQ4_NL": Layout(4, 0, 144, 16, lambda q: IQ4_CODEBOOK[q]),
    "MXFP4": Layout(4, 0, 136, 8, lambda q: MXFP4_CODEBOOK[q]),
    "Q2_K": Layout(2, 160, 64),
    "Q3_K": Layout(3, 112, 96, 0, lambda q: q - 4),
    "Q4_K": Layout(4, 128, 128),
    "Q5_K": Layout(5, 128, 160),
    "Q6_K": Layout(6, 16, 208, 16, lambda q: q - 32),
    "IQ4_XS": Layout(4, 64, 128, 0, lambda q: IQ4_CODEBOOK[q]),
}


def test_all_formats_are_drawn_here() -> None:
    assert set(INTEGER_FORMATS) == set(LAYOUTS)


@pytest.mark.parametrize("format", LAYOUTS)
def test_codes_lie_where_the_diagram_says(format: str) -> None:
    weights = random_weights(format, 8, 512, np.random.default_rng(5))
    expected = unpack(format, weights.source, (8, 512)).codes
    layout = LAYOUTS[format]
    groups_per_superblock = WEIGHT_FORMATS[format].superblock_size // 32
    superblocks = weights.packed.reshape(512 // 32 // groups_per_superblock, -1)
    for g in range(512 // 32):
        superblock = superblocks[g // groups_per_superblock]
        start = layout.header + g % groups_per_superblock * layout.group + layout.start
        codes = layout.code(codes_of(superblock[start : start + 32 * layout.width], layout.width))
        np.testing.assert_array_equal(codes, expected[:, 32 * g : 32 * g + 32])


def f16(stored: Bytes) -> NDArray[np.float32]:
    return stored.view("<f2").astype(np.float32)


def header_scales(format: str, superblock: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Scales and minimums [row, group or half] of one repacked superblock of 8 rows."""
    if format in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL"):
        return f16(superblock[:16])[:, None], None
    if format in ("Q4_1", "Q5_1"):
        return f16(superblock[:16])[:, None], f16(superblock[16:32])[:, None]
    if format == "MXFP4":
        return np.ldexp(np.float32(1), superblock[:8].astype(int) - 128)[:, None], None
    d = f16(superblock[:16])[:, None]
    if format == "Q3_K":
        numbers = six_bits(superblock[16:112]).reshape(8, 8, 2)  # [group, row, half]
        return d * (numbers.swapaxes(0, 1).reshape(8, 16) - 32).astype(np.float32), None
    if format == "Q6_K":
        halves = superblock[16:].reshape(8, 208)[:, :16].view(np.int8).reshape(8, 8, 2)
        return d * halves.swapaxes(0, 1).reshape(8, 16).astype(np.float32), None
    if format == "IQ4_XS":
        return d * (six_bits(superblock[16:64]).reshape(8, 8).T - 32).astype(np.float32), None
    dmin = f16(superblock[16:32])[:, None]
    if format == "Q2_K":
        pairs = superblock[32:160].reshape(8, 8, 2).swapaxes(0, 1).reshape(8, 16)
        return d * (pairs & 15).astype(np.float32), -(dmin * (pairs >> 4).astype(np.float32))
    groups = [scale_min_bytes(stored) for stored in superblock[32:128].reshape(8, 12)]
    scales = np.stack([scale for scale, _ in groups], axis=1).astype(np.float32)
    return d * scales, -(dmin * np.stack([minimum for _, minimum in groups], axis=1).astype(np.float32))


@pytest.mark.parametrize("format", LAYOUTS)
def test_scales_lie_where_the_diagram_says(format: str) -> None:
    weights = random_weights(format, 8, 512, np.random.default_rng(6))
    expected = unpack(format, weights.source, (8, 512))
    superblocks = weights.packed.reshape(512 // WEIGHT_FORMATS[format].superblock_size, -1)
    headers = [header_scales(format, superblock) for superblock in superblocks]
    np.testing.assert_array_equal(np.concatenate([scales for scales, _ in headers], axis=1), expected.scales)
    if expected.minimums is not None:
        minimums = [minimums for _, minimums in headers if minimums is not None]
        np.testing.assert_array_equal(np.concatenate(minimums, axis=1), expected.minimums)
