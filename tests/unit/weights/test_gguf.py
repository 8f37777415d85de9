"""Reading well-formed GGUF files, whole and split, and the typed access to their metadata."""

import warnings
from collections.abc import Callable
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest

from hotloop.errors import ModelFileError, ModelNotFoundError
from hotloop.quant.formats import WEIGHT_FORMATS
from hotloop.weights.gguf import GGUFFile
from hotloop.weights.gguf_writer import WritableTensor, WritableValue, write_gguf

METADATA: dict[str, WritableValue] = {
    "general.architecture": "llama",
    "general.name": "tiny \u00fcn\u00efc\u00f6de \U0001f999",
    "empty.string": "",
    "llama.block_count": 2,
    "negative": -5,
    "large": 2**40,
    "most.negative": -(2**63),
    "llama.rope.freq_base": 10000.0,
    "a.double": np.float64(0.1),
    "a.byte": np.uint8(255),
    "a.signed.byte": np.int8(-128),
    "a.short": np.uint16(65535),
    "not.a.number": float("nan"),
    "yes": True,
    "no": False,
    "tokenizer.ggml.tokens": ["<s>", "", "a", "\u00e9", "\U0001f600", "x" * 300, "nul\0inside"],
    "no.strings": [],
    "tokenizer.ggml.scores": np.array([0.5, -1, 3], np.float32),
    "tokenizer.ggml.token_type": np.array([1, 2, 3], np.int32),
    "bools": np.array([True, False, True]),
    "wide": np.array([2**63], np.uint64),
}


def tensor(format: str, shape: tuple[int, ...], seed: int = 0) -> WritableTensor:
    nbytes = WEIGHT_FORMATS[format].tensor_bytes(shape)
    return format, shape, np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


TENSORS: dict[str, WritableTensor] = {
    "output_norm.weight": tensor("F32", (5,), 1),
    "token_embd.weight": tensor("Q6_K", (3, 512), 2),
    "three.dims": tensor("Q8_0", (2, 3, 64), 3),
    "last": tensor("BF16", (1, 1, 1, 7), 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, METADATA, TENSORS)
    return path


def assert_metadata_equal(actual: object, expected: object) -> None:
    if isinstance(expected, np.ndarray):
        assert isinstance(actual, np.ndarray)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
    else:
        value = expected.item() if isinstance(expected, np.generic) else expected
        assert type(actual) is type(value)
        np.testing.assert_equal(actual, value)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_what_is_written_is_read(tmp_path: Path, version: int, alignment: int):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, METADATA, TENSORS, version=version, alignment=alignment)
    with GGUFFile.open(path) as file:
        assert file.version == version
        assert file.path == path
        assert file.paths == (path,)
        assert file.nbytes == path.stat().st_size
        assert list(file.metadata) == list(METADATA) + ["general.alignment"] * (alignment != 32)
        for key, expected in METADATA.items():
            assert_metadata_equal(file.metadata[key], expected)
        assert list(file.tensors) == list(TENSORS)
        for name, (format, shape, data) in TENSORS.items():
            info = file.tensors[name]
            assert (info.name, info.format, info.shape) == (name, format, shape)
            assert info.nbytes == len(data)
            np.testing.assert_array_equal(file.data(name), data)


def test_an_independent_reader_agrees(path: Path):
    reader = oracle.GGUFReader(path)
    with GGUFFile.open(path) as file:
        for key in METADATA:
            np.testing.assert_equal(file.metadata[key], reader.fields[key].contents(), err_msg=key)
        assert len(reader.tensors) == len(file.tensors)
        for theirs in reader.tensors:
            info = file.tensors[theirs.name]
            assert info.format == theirs.tensor_type.name
            assert info.shape == tuple(reversed(theirs.shape.tolist()))
            np.testing.assert_array_equal(file.data(theirs.name), theirs.data.reshape(-1).view(np.uint8))


def test_an_independent_writer_is_read(tmp_path: Path):
    path = tmp_path / "theirs.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b\u00e9"])
    writer.add_token_types([1, 6])
    writer.add_rope_freq_base(5e5)
    weights = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    packed = oracle.quants.quantize(weights, oracle.GGMLQuantizationType.Q4_1)
    writer.add_tensor("w", packed, raw_dtype=oracle.GGMLQuantizationType.Q4_1)
    writer.add_tensor("bias", weights[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(str(path)) as file:
        assert file.get_int("llama.block_count") == 3
        assert file.get_strings("tokenizer.ggml.tokens") == ["a", "b\u00e9"]
        assert file.get_array("tokenizer.ggml.token_type").tolist() == [1, 6]
        assert file.tensors["w"].shape == (4, 64)
        assert file.tensors["w"].format == "Q4_1"
        np.testing.assert_array_equal(file.data("w"), packed.reshape(-1))


def test_every_format_is_sized_and_mixes(tmp_path: Path):
    tensors = {name: tensor(name, (3, known.superblock_size * 2)) for name, known in WEIGHT_FORMATS.items()}
    write_gguf(tmp_path / "all.gguf", {}, tensors)
    with GGUFFile.open(tmp_path / "all.gguf") as file:
        assert {name: info.format for name, info in file.tensors.items()} == {
            name: name for name in WEIGHT_FORMATS
        }
        for name, (_, _, data) in tensors.items():
            np.testing.assert_array_equal(file.data(name), data)


def test_data_is_a_read_only_view(path: Path):
    with GGUFFile.open(path) as file:
        data = file.data("token_embd.weight")
        again = file.data("token_embd.weight")
        assert data.dtype == np.uint8
        assert np.shares_memory(data, again)
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1


def test_views_outlive_the_file_object(path: Path):
    with GGUFFile.open(path) as file:
        data = file.data("token_embd.weight")
    np.testing.assert_array_equal(data, TENSORS["token_embd.weight"][2])
    with pytest.raises(ValueError, match="is closed"):
        file.data("token_embd.weight")


def test_mappings_cannot_be_changed(path: Path):
    with GGUFFile.open(path) as file:
        with pytest.raises(TypeError):
            file.metadata["x"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            file.tensors["x"] = file.tensors["last"]  # type: ignore[index]
        with pytest.raises(ValueError, match="read-only"):
            file.get_array("tokenizer.ggml.scores")[0] = 1


def test_typed_getters(path: Path):
    with GGUFFile.open(path) as file:
        assert file.get_int("llama.block_count") == 2
        assert file.get_float("llama.rope.freq_base") == 10000.0
        assert file.get_float("llama.block_count") == 2.0
        assert file.get_str("general.architecture") == "llama"
        assert file.get_bool("yes") is True
        assert file.get_bool("no", True) is False
        assert file.get_strings("no.strings") == []
        assert file.get_int("absent", 7) == 7
        assert file.get_float("absent", None) is None
        assert file.get_str("absent", "") == ""
        assert file.get_bool("absent", False) is False
        assert file.get_strings("absent", None) is None
        assert file.get_array("absent", None) is None


@pytest.mark.parametrize(
    ("getter", "key", "message"),
    [
        (GGUFFile.get_int, "absent", "the metadata key 'absent' is missing"),
        (GGUFFile.get_float, "absent", "'absent' is missing"),
        (GGUFFile.get_str, "absent", "'absent' is missing"),
        (GGUFFile.get_bool, "absent", "'absent' is missing"),
        (GGUFFile.get_strings, "absent", "'absent' is missing"),
        (GGUFFile.get_array, "absent", "'absent' is missing"),
        (GGUFFile.get_int, "yes", "'yes' must be an integer, but is True"),
        (GGUFFile.get_int, "llama.rope.freq_base", "must be an integer, but is 10000.0"),
        (GGUFFile.get_int, "tokenizer.ggml.token_type", "must be an integer, but is an array of 3 items"),
        (GGUFFile.get_float, "yes", "'yes' must be a finite number, but is True"),
        (GGUFFile.get_float, "not.a.number", "'not.a.number' must be a finite number, but is nan"),
        (GGUFFile.get_float, "general.architecture", "must be a finite number, but is 'llama'"),
        (GGUFFile.get_str, "llama.block_count", "must be a string, but is 2"),
        (GGUFFile.get_bool, "llama.block_count", "must be a boolean, but is 2"),
        (GGUFFile.get_strings, "general.architecture", "must be an array of strings, but is 'llama'"),
        (GGUFFile.get_strings, "bools", "must be an array of strings, but is an array of 3 items"),
        (
            GGUFFile.get_array,
            "tokenizer.ggml.tokens",
            "must be an array of numbers, but is an array of 7 items",
        ),
        (GGUFFile.data, "nope.weight", "the tensor 'nope.weight' is missing"),
    ],
)
def test_getters_name_the_key(path: Path, getter: Callable[[GGUFFile, str], object], key: str, message: str):
    with GGUFFile.open(path) as file, pytest.raises(ModelFileError) as raised:
        getter(file, key)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def write_parts(folder: Path, count: int = 3, **changes: dict[str, WritableValue]) -> list[Path]:
    """Part i holds tensor t<i>; changes["part<i>"] replaces metadata (None removes it)."""
    paths = [folder / f"m-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        metadata: dict[str, WritableValue] = {
            "split.no": np.uint16(i),
            "split.count": np.uint16(count),
            "split.tensors.count": np.int32(count),
        }
        if i == 0:
            metadata["general.architecture"] = "llama"
        metadata |= changes.get(f"part{i}", {})
        tensors = {f"t{i}": tensor("F16", (2, 3), i)}
        write_gguf(path, {key: value for key, value in metadata.items() if value is not None}, tensors)
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_split_model_opens_through_any_part(tmp_path: Path, opened: int):
    paths = write_parts(tmp_path)
    with GGUFFile.open(paths[opened]) as file:
        assert file.path == paths[opened]
        assert file.paths == tuple(paths)
        assert file.nbytes == sum(path.stat().st_size for path in paths)
        assert file.get_str("general.architecture") == "llama"
        assert list(file.tensors) == ["t0", "t1", "t2"]
        for i in range(3):
            np.testing.assert_array_equal(file.data(f"t{i}"), tensor("F16", (2, 3), i)[2])


def test_a_split_model_of_one_part(tmp_path: Path):
    with GGUFFile.open(write_parts(tmp_path, count=1)[0]) as file:
        assert list(file.tensors) == ["t0"]


def test_a_missing_part_is_named(tmp_path: Path):  # known fault B91
    paths = write_parts(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"1 of 3 parts are missing beside it: m-00002-of-00003\.gguf"):
        GGUFFile.open(paths[2])


def test_a_missing_file(tmp_path: Path):
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        GGUFFile.open(tmp_path / "nowhere.gguf")
    with pytest.raises(ModelFileError, match="2 of 3 parts are missing"):
        GGUFFile.open(tmp_path / "m-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part0": {"split.count": np.uint16(4)}}, "m-00001-of-00003.gguf: metadata key 'split.count' is 4"),
        ({"part1": {"split.count": None}}, "m-00002-of-00003.gguf: metadata key 'split.count' is None"),
        ({"part2": {"split.no": np.uint16(1)}}, "m-00003-of-00003.gguf: metadata key 'split.no' is 1"),
        (
            {"part0": {"split.tensors.count": np.int32(9)}},
            "'split.tensors.count' is 9, but by the names and tensors of the parts it must be 3 or absent",
        ),
    ],
)
def test_parts_that_do_not_belong_together(
    tmp_path: Path, changes: dict[str, dict[str, WritableValue]], message: str
):
    paths = write_parts(tmp_path, **changes)
    with pytest.raises(ModelFileError) as raised:
        GGUFFile.open(paths[0])
    assert message in str(raised.value)


def test_a_tensor_in_two_parts(tmp_path: Path):  # known fault B91
    paths = write_parts(tmp_path)
    metadata: dict[str, WritableValue] = {"split.no": np.uint16(1), "split.count": np.uint16(3)}
    write_gguf(paths[1], metadata, {"t0": tensor("F16", (2, 3))})
    with (
        warnings.catch_warnings(record=True, action="always") as left_to_the_garbage_collector,
        pytest.raises(ModelFileError, match=r"tensor 't0' is in two parts.*00001-of.*00002-of"),
    ):
        GGUFFile.open(paths[0])
    assert not left_to_the_garbage_collector


def test_a_renamed_part_is_refused(tmp_path: Path):
    renamed = write_parts(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(
        ModelFileError, match=r"'split\.count' is 3, but .* must be 0 or 1 or absent.*original names"
    ):
        GGUFFile.open(renamed)


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-99999.gguf"])
def test_an_impossible_part_number(tmp_path: Path, name: str):
    with pytest.raises(ModelFileError, match="the name says part"):
        GGUFFile.open(tmp_path / name)


@pytest.mark.real_model
def test_a_real_model_equals_an_independent_reader(model_path: Callable[[str], Path]):
    path = model_path("smollm2-135m")
    reader = oracle.GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert set(file.metadata) == {key for key in reader.fields if not key.startswith("GGUF.")}
        for key, value in file.metadata.items():
            np.testing.assert_equal(value, reader.fields[key].contents(), err_msg=key)
        for theirs in reader.tensors:
            assert file.tensors[theirs.name].format == theirs.tensor_type.name
            np.testing.assert_array_equal(file.data(theirs.name), theirs.data.reshape(-1).view(np.uint8))


def test_the_writer_checks_its_arguments(tmp_path: Path):
    with pytest.raises(ValueError, match=r"'w': Q8_0 of \(2, 32\) is 68 bytes, not 67"):
        write_gguf(tmp_path / "x.gguf", {}, {"w": ("Q8_0", (2, 32), bytes(67))})
    with pytest.raises(TypeError, match="cannot write None"):
        write_gguf(tmp_path / "x.gguf", {"key": None}, {})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="no value type for float16"):
        write_gguf(tmp_path / "x.gguf", {"key": np.float16(1)}, {})
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        write_gguf(tmp_path / "x.gguf", {"key": 2**64}, {})
