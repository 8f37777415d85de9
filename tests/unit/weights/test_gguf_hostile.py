"""Hostile and damaged GGUF files: a ModelFileError that names the key or tensor, and next to no memory."""

import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.errors import ModelFileError
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_header import parse_header
from hotloop.weights.gguf_writer import write_gguf

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
HUGE = 2**63


def text(name: str | bytes) -> bytes:
    encoded = name.encode() if isinstance(name, str) else name
    return struct.pack("<Q", len(encoded)) + encoded


def key(name: str | bytes, value_type: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", value_type) + value


def array(item_type: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", item_type, count) + items


def tensor(
    name: str | bytes,
    dims: tuple[int, ...] = (32,),
    type_id: int = 8,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    count = len(dims) if num_dims is None else num_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, type_id, offset)


def file(
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    data: int = 1024,
    cut: int = 0,
) -> bytes:
    """A file with `data` bytes of tensor data, or (cut > 0) a header that lacks its last `cut` bytes."""
    num_tensors = len(tensors) if num_tensors is None else num_tensors
    num_keys = len(keys) if num_keys is None else num_keys
    header = magic + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(keys) + b"".join(tensors)
    return header[:-cut] if cut else header + bytes(-len(header) % 32 + data)


def nested(depth: int) -> bytes:
    return array(ARRAY, 1) * depth + array(U8, 1, b"\0")


# The 34 bytes of a Q8_0 tensor of 32 elements end at 34, so the next aligned offset is 64.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "magic only": (b"GGUF", "truncated: 4 bytes cannot hold"),
    "bad magic": (file(magic=b"ggjt"), "not a GGUF file: it starts with b'ggjt'"),
    "a pickle": (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
    "version 0": (file(version=0), "version 0 is not supported"),
    "version 1": (file(version=1), "version 1 is not supported (supported: 2, 3)"),
    "version 99": (file(version=99), "version 99 is not supported"),
    "big-endian": (file(version=3 << 24), "big-endian GGUF file"),
    "key count 2^63": (file(num_keys=HUGE), f"claims {HUGE} metadata keys"),
    "tensor count 2^63": (file(num_tensors=HUGE), f"claims {HUGE} tensors"),
    "too many keys": (file(num_keys=70_000, data=70_000 * 14), "has 70000 metadata keys; the limit is 65536"),
    "too many tensors": (file(num_tensors=70_000, data=70_000 * 33), "has 70000 tensors; the limit is 65536"),
    "key count one too high": (file((key("a", U8, b"\1"),), num_keys=2, data=0), "metadata key 1 of 2"),
    "key length 2^63": (file((struct.pack("<Q", HUGE),), num_keys=1), "metadata key 0 of 1: a string of"),
    "key length past the end": (file((struct.pack("<Q", 5000),)), "5000 bytes are needed at byte 32"),
    "key of 64 KiB": (file((key("k" * 65536, U8, b"\1"),)), "a string of 65536 bytes; the limit is 65535"),
    "empty key": (file((key("", U8, b"\1"),)), "metadata key 0 of 1 has an empty name"),
    "duplicate key": (file((key("a.b", U8, b"\1"),) * 2), "metadata key 'a.b' appears twice"),
    "key not UTF-8": (file((key(b"a\xff", U8, b"\1"),)), "metadata key 0 of 1: invalid UTF-8 at byte 33"),
    "string length 2^63": (file((key("s", STRING, struct.pack("<Q", HUGE)),)), "key 's': a string of"),
    "string past the end": (
        file((key("s", STRING, struct.pack("<Q", 4000)),)),
        "key 's': 4000 bytes are needed",
    ),
    "string not UTF-8": (file((key("s", STRING, text(b"ab\xc3(")),)), "metadata key 's': invalid UTF-8"),
    "string with a surrogate": (file((key("s", STRING, text(b"\xed\xa0\x80")),)), "key 's': invalid UTF-8"),
    "unknown value type": (file((key("v", 13, bytes(8)),)), "key 'v': unknown value type 13 (known: 0, 1, 2"),
    "value past the end": (file((key("v", U64, b"12345678"),), cut=4), "key 'v'"),
    "bool 2": (file((key("b", BOOL, b"\2"),)), "metadata key 'b': 2 is not a boolean"),
    "bool in array": (file((key("b", ARRAY, array(BOOL, 3, b"\0\1\xff")),)), "key 'b': 255 is not a boolean"),
    "array count 2^63": (file((key("n", ARRAY, array(F32, HUGE)),)), f"key 'n' claims {HUGE} numbers"),
    "array size overflows": (file((key("n", ARRAY, array(F32, 2**62)),)), f"key 'n' claims {2**62} numbers"),
    "array over the limit": (
        file((key("n", ARRAY, array(U8, 2**24 + 1)),), data=2**24 + 64),
        "the limit is 16777216",
    ),
    "array of unknown type": (file((key("n", ARRAY, array(77, 1, bytes(8))),)), "'n': unknown value type 77"),
    "empty array of unknown type": (file((key("n", ARRAY, array(77, 0)),)), "'n': unknown value type 77"),
    "strings 2^63": (file((key("t", ARRAY, array(STRING, HUGE)),)), f"key 't' claims {HUGE} strings"),
    "strings past the end": (
        file((key("t", ARRAY, array(STRING, 3, text("ab") + struct.pack("<Q", 9999))),)),
        "metadata key 't', item 1: 9999 bytes are needed",
    ),
    "string length in array 2^64 - 1": (
        file((key("t", ARRAY, array(STRING, 2, text("ab") + b"\xff" * 8)),)),
        "metadata key 't', item 1: a string of",
    ),
    "strings that run out": (
        file((key("t", ARRAY, array(STRING, 3, text("x" * 100) + text("y" * 100))),), cut=1),
        "metadata key 't', item 1: 100 bytes are needed",
    ),
    "item not UTF-8": (
        file((key("t", ARRAY, array(STRING, 3, text("ab") + text("\u00e9") + text(b"\x80"))),)),
        "metadata key 't', item 2: invalid UTF-8",
    ),
    "item over the limit": (
        file((key("t", ARRAY, array(STRING, 2, text("ab") + text(bytes(2**20 + 1)))),)),
        "metadata key 't', item 1: a string of 1048577 bytes; the limit is 1048576",
    ),
    "array of arrays": (file((key("n", ARRAY, nested(1)),)), "key 'n': nested arrays are not supported"),
    "arrays nested 100 deep": (file((key("n", ARRAY, nested(100)),)), "key 'n': nested arrays"),
    "control characters in a key": (file((key("a\x1b[31m\n", 13, b""),)), r"'a\x1b[31m\n': unknown"),
    "long key": (file((key("k" * 60_000, 13, b""),)), "kkk...'"),
    "no dims": (file((), (tensor("w", ()),)), "tensor 'w' has 0 dimensions"),
    "5 dims": (file((), (tensor("w", (1,) * 5),)), "tensor 'w' has 5 dimensions; 1 to 4 are possible"),
    "2^32 - 1 dims": (file((), (tensor("w", num_dims=2**32 - 1),)), "tensor 'w' has 4294967295 dimensions"),
    "dim 0": (file((), (tensor("w", (32, 0)),)), "tensor 'w' has a dimension of size 0: [32, 0]"),
    "dim 2^62": (
        file((), (tensor("w", (2**62,)),)),
        "tensor 'w' of shape (4611686018427387904,) needs bytes",
    ),
    "product overflows to 0": (file((), (tensor("w", (2**32, 2**32)),)), "tensor 'w' of shape"),
    "product overflows to 32": (file((), (tensor("w", (32, 2**62, 4), 0),)), "tensor 'w' of shape"),
    "type id 4": (file((), (tensor("w", type_id=4),)), "'w' has the unknown type id 4 (known: 0 F32, 1 F16"),
    "type id 250": (file((), (tensor("w", type_id=250),)), "tensor 'w' has the unknown type id 250 (known:"),
    "ragged row": (
        file((), (tensor("w", (33, 2)),)),
        "tensor 'w': a row of 33 elements is not a multiple of 32",
    ),
    "ragged K-quant row": (file((), (tensor("w", (128,), 12),)), "tensor 'w': a row of 128 elements"),
    "empty tensor name": (file((), (tensor(""),)), "tensor 0 of 1 has an empty name"),
    "tensor name not UTF-8": (file((), (tensor(b"\xff"),)), "tensor 0 of 1: invalid UTF-8"),
    "duplicate tensor": (file((), (tensor("w"), tensor("w", offset=64))), "tensor 'w' appears twice"),
    "same offset": (file((), (tensor("v"), tensor("w"))), "tensors 'v' and 'w' overlap"),
    "overlap": (file((), (tensor("v", offset=32), tensor("w"))), "tensors 'w' and 'v' overlap"),
    "misaligned": (
        file((), (tensor("v"), tensor("w", offset=48))),
        "'w': its offset 48 is not a multiple of 32",
    ),
    "offset past the end": (file((), (tensor("w", offset=1024),)), "tensor 'w' of shape (32,) needs bytes"),
    "offset 2^64 - 32": (
        file((), (tensor("w", offset=2**64 - 32),)),
        "tensor 'w' of shape (32,) needs bytes",
    ),
    "one byte short": (file((), (tensor("w"),), data=33), "tensor 'w' of shape (32,) needs bytes 64 to 98"),
    "tensor entry cut": (
        file((), (tensor("v"), tensor("w", (32, 1, 1))), cut=6),
        "tensor 'w': 8 bytes are needed",
    ),
    **{
        f"alignment {value}": (
            file((key("general.alignment", U32, struct.pack("<I", value)),)),
            f"'general.alignment' is {value}; it must be a power of two",
        )
        for value in (0, 1, 3, 33, 2**30)
    },
    "alignment string": (
        file((key("general.alignment", STRING, text("32")),)),
        "'general.alignment' is '32'",
    ),
    "alignment bool": (file((key("general.alignment", BOOL, b"\1"),)), "'general.alignment' is True"),
    "alignment array": (
        file((key("general.alignment", ARRAY, array(U32, 1, struct.pack("<I", 32))),)),
        "'general.alignment' is an array of 1 items",
    ),
    "alignment long string": (
        file((key("general.alignment", STRING, text("3" * 10_000)),)),
        "'general.alignment' is '333",
    ),
    "split count array": (
        file((key("split.count", ARRAY, array(U8, 10_000, bytes(10_000))),)),
        "'split.count' is an array of 10000 items",
    ),
}


@contextmanager
def at_most_allocated(num_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < num_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str):  # known fault B87
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with at_most_allocated(1_000_000), pytest.raises(ModelFileError) as raised:
        GGUFFile.open(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    # A known list of 34 formats is the longest part of a message.
    assert len(str(raised.value)) < len(str(path)) + 900


def test_the_scaffold_itself_is_accepted(tmp_path: Path):
    (tmp_path / "good.gguf").write_bytes(file((key("a", U8, b"\1"),), (tensor("v"), tensor("w", offset=64))))
    with GGUFFile.open(tmp_path / "good.gguf") as good:
        assert good.get_int("a") == 1
        assert list(good.tensors) == ["v", "w"]


def test_millions_of_strings_are_refused_before_they_are_read(tmp_path: Path):
    path = tmp_path / "strings.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("t", ARRAY, array(STRING, 2**22 + 1))
    with path.open("wb") as out:
        out.write(head)
        out.truncate(len(head) + 8 * (2**22 + 1))  # sparse: empty strings
    with at_most_allocated(1_000_000), pytest.raises(ModelFileError, match="4194305 strings; the limit is"):
        GGUFFile.open(path)


def test_a_string_over_the_limit_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "string.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("s", STRING, struct.pack("<Q", 2**26 + 1))
    with path.open("wb") as out:
        out.write(head)
        out.truncate(2**26 + 100)
    with (
        at_most_allocated(1_000_000),
        pytest.raises(ModelFileError, match="key 's': a string of 67108865 bytes"),
    ):
        GGUFFile.open(path)


def test_a_damaged_length_costs_only_the_text_before_the_damage(tmp_path: Path):
    path = tmp_path / "string.gguf"
    content = b"x" * 65_535 + "\u00e9".encode() + b"y" * 100_000 + b"\xff" + b"z" * 2**25
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    path.write_bytes(head + key("s", STRING, text(content)))
    with (
        at_most_allocated(1_000_000),
        pytest.raises(ModelFileError, match="key 's': invalid UTF-8 at byte 165582"),
    ):
        GGUFFile.open(path)


def test_a_long_string_is_put_together_again(tmp_path: Path):
    # Every character straddles two pieces somewhere.
    long = "\u00e9\u20ac\U0001f999a" * 50_000
    write_gguf(tmp_path / "long.gguf", {"s": long, "x" + long[:16_000]: 1}, {})
    with GGUFFile.open(tmp_path / "long.gguf") as good:
        assert good.get_str("s") == long
        assert good.get_int("x" + long[:16_000]) == 1


def test_not_a_regular_file(tmp_path: Path):
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile.open(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(ModelFileError, match="not a regular file"):
            GGUFFile.open(tmp_path / "pipe.gguf")


def real_shaped_file(folder: Path) -> bytes:
    """A model whose header is about 64 KiB, in the proportions of a real one."""
    tokens = [f"token{i}" for i in range(1500)]
    q8_0 = np.zeros(4 * 34, np.uint8)
    write_gguf(
        folder / "real.gguf",
        {
            "general.architecture": "llama",
            "llama.block_count": 30,
            "llama.rope.freq_base": 1e5,
            "general.alignment": 32,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairwise(tokens[:801])],
            "tokenizer.ggml.token_type": np.ones(1500, np.int32),
            "tokenizer.chat_template": "{% for message in messages %}" * 40,
            "tokenizer.ggml.add_bos_token": False,
        },
        {f"blk.{i}.attn_q.weight": ("Q8_0", (2, 64), q8_0) for i in range(120)},
    )
    return (folder / "real.gguf").read_bytes()


def parse_or_refuse(content: bytes) -> bool:
    """True if refused by name. Anything but a ModelFileError escapes and fails the test."""
    try:
        header = parse_header(content, "fuzzed.gguf")
    except ModelFileError as error:
        return str(error).startswith("fuzzed.gguf: ")
    # What is accepted must be usable: every tensor inside the file.
    for name, info in header.tensors.items():
        assert 0 < header.offsets[name] <= len(content) - info.nbytes
    return False


def test_flipped_bytes_in_a_real_header(tmp_path: Path):  # known fault B87
    content = real_shaped_file(tmp_path)
    assert len(content) > 65_536
    assert not parse_or_refuse(content)
    rng = np.random.default_rng(87)
    refused = 0
    with at_most_allocated(4_000_000):
        for _ in range(600):
            damaged = bytearray(content)
            for _ in range(rng.integers(1, 4)):
                # Half of the damage goes into the first kilobyte, where the counts are.
                place = rng.integers(0, 1024 if rng.random() < 0.5 else 65_536)
                damaged[place] ^= rng.integers(1, 256)
            refused += parse_or_refuse(bytes(damaged))
    assert 100 < refused < 600


def test_a_file_cut_anywhere_is_refused(tmp_path: Path):  # known faults B87, B91
    content = real_shaped_file(tmp_path)
    end_of_data = len(content) - 24  # 136 bytes of the last tensor, padded to 160
    for length in [*range(0, 2000, 7), *range(2000, end_of_data, 997), end_of_data - 1]:
        assert parse_or_refuse(content[:length]), length
    assert not parse_or_refuse(content[:end_of_data])


@given(
    num_tensors=st.integers(0, 3),
    num_keys=st.integers(0, 3),
    body=st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([text("a"), text("b"), text(""), bytes(8), b"\xff" * 8]),
            st.integers(0, 14).map(lambda number: struct.pack("<I", number)),
            st.integers(0, 64).map(lambda number: struct.pack("<Q", number)),
        ),
        max_size=30,
    ).map(b"".join),
)
def test_any_bytes_after_the_counts(num_tensors: int, num_keys: int, body: bytes):
    parse_or_refuse(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_keys) + body)


def test_a_file_truncated_while_it_is_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file(tensors=(tensor("a", (1 << 16,)),), data=1 << 17))
    with GGUFFile.open(path) as gguf:
        assert not gguf.data("a").any()
        os.truncate(path, 4096)
        with pytest.raises(ModelFileError, match=r"m\.gguf: the tensor 'a' .*: the file shrank to 4096 bytes"):
            gguf.data("a")
        with pytest.raises(ModelFileError, match=r"m\.gguf: the tensor 'a' .*: the file ends in it"):
            gguf.read("a")
