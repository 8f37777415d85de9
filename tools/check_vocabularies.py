"""Compare hotloop's tokenizers with those of the models' makers, on the difficult strings of the tests.

    check_vocabularies.py folders FOLDER...         tokenizer.json folders: with the `tokenizers` library
    check_vocabularies.py sentencepiece FILE...     tokenizer.model files: with the sentencepiece library
    check_vocabularies.py tekken FILE...            Mistral's tekken.json files: with tiktoken
    check_vocabularies.py fixtures FILE...          vocabularies of llama.cpp's tests: with the .out file beside each
    check_vocabularies.py llama-cpp FOLDER|FILE...  any of them as a GGUF file: with llama.cpp (needs llama-cpp-python)

An argument NAME:PATH gives the pre-tokenizer another name, where two families share one.
"""

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from hotloop.text.byte_level import byte_alphabet  # noqa: E402
from hotloop.text.tokenizer import Tokenizer  # noqa: E402
from hotloop.weights.gguf import GGUFFile  # noqa: E402
from hotloop.weights.gguf_writer import write_gguf  # noqa: E402
from hotloop.weights.hf.tokenizer import tokenizer_metadata  # noqa: E402
from nasty_corpus import nasty_corpus  # noqa: E402

USER_DEFINED = 4
Encode = Callable[[str, bool], list[int]]


def metadata_of(argument: str) -> dict[str, Any]:
    """Metadata of a folder, a tokenizer.model, a tekken.json or a GGUF file."""
    name, _, path_text = argument.rpartition(":")
    path = Path(path_text)
    if path.is_dir():
        metadata = dict(tokenizer_metadata(path))
    elif path.suffix == ".gguf":
        metadata = dict(GGUFFile.open(path).metadata)
    else:
        with tempfile.TemporaryDirectory() as folder:
            if path.suffix == ".json":
                (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer_json_of_tekken(path)))
            else:
                shutil.copy(path, Path(folder) / "tokenizer.model")
            metadata = dict(tokenizer_metadata(Path(folder)))
    return {**metadata, "tokenizer.ggml.pre": name} if name else metadata


def compare(name: str, ours: Tokenizer, theirs: Encode, modes: tuple[bool, ...] = (False, True)) -> None:
    """Print on how many strings the ids differ, and the shortest."""
    for parse_special in modes:
        wrong = []
        for text in nasty_corpus():
            expected, actual = (
                theirs(text, parse_special),
                ours.encode(text, add_special=False, parse_special=parse_special),
            )
            if expected != actual:
                wrong.append(f"  {text!r}\n    oracle  {expected}\n    hotloop {actual}")
        print(f"{name}: {len(wrong)} of {len(nasty_corpus())} strings differ ({parse_special=})", flush=True)
        print(*sorted(wrong, key=len)[:3], sep="\n", end="\n" if wrong else "")


def check_folder(argument: str) -> None:
    import tokenizers

    metadata = metadata_of(argument)
    definition = json.loads((Path(argument) / "tokenizer.json").read_text())
    for added in definition["added_tokens"]:  # which of them are control tokens: see weights/hf/tokenizer.py
        added["special"] = bool(metadata["tokenizer.ggml.token_type"][added["id"]] != USER_DEFINED)
    parsing, literal = (tokenizers.Tokenizer.from_str(json.dumps(definition)) for _ in range(2))
    literal.encode_special_tokens = True
    pick = {True: parsing, False: literal}
    compare(
        argument,
        Tokenizer.from_metadata(metadata),
        lambda text, parse: list(pick[parse].encode(text, add_special_tokens=False).ids),
    )


def check_sentencepiece(argument: str) -> None:
    from sentencepiece import SentencePieceProcessor

    oracle = SentencePieceProcessor(argument)
    compare(
        argument, Tokenizer.from_metadata(metadata_of(argument)), lambda text, _: list(oracle.encode(text)), (False,)
    )


def check_tekken(argument: str) -> None:
    import tiktoken

    definition, tokens = _tekken(Path(argument))
    ranks = {token: rank for rank, token in enumerate(tokens)}
    oracle = tiktoken.Encoding(
        "tekken", pat_str=definition["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    compare(
        argument,
        Tokenizer.from_metadata(metadata_of(argument)),
        lambda text, _: [i + definition["config"]["default_num_special_tokens"] for i in oracle.encode_ordinary(text)],
        (False,),
    )


def check_fixture(argument: str) -> None:
    ours = Tokenizer.from_metadata(metadata_of(argument))
    texts = Path(argument + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wrong = 0
    for text, line in zip(texts, Path(argument + ".out").read_text().split("\n"), strict=True):
        wrong += ours.encode(text, add_special=False) != [int(word) for word in line.split()]
    print(f"{argument}: {wrong} of {len(texts)} strings differ")


def check_llama_cpp(argument: str) -> None:
    from llama_cpp import Llama

    metadata = metadata_of(argument)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        keys = {key: value for key, value in metadata.items() if key.startswith(("tokenizer.", "hotloop."))}
        write_gguf(path, {"general.architecture": "llama", "llama.vocab_size": 0, **keys}, {})
        theirs = Llama(str(path), vocab_only=True, verbose=False)
        compare(
            f"{argument} in llama.cpp",
            Tokenizer.from_metadata(metadata),
            lambda text, parse: list(theirs.tokenize(text.encode(), add_bos=False, special=parse)),
        )


def _tekken(path: Path) -> tuple[Mapping[str, Any], list[bytes]]:
    definition = json.loads(path.read_text())
    count = definition["config"]["default_vocab_size"] - definition["config"]["default_num_special_tokens"]
    entries = sorted(definition["vocab"], key=lambda entry: entry["rank"])[:count]
    return definition, [base64.b64decode(entry["token_bytes"]) for entry in entries]


def tokenizer_json_of_tekken(path: Path) -> dict[str, Any]:
    """A tokenizer.json with the ids of a tekken.json: special tokens first, and a merge for each token."""
    definition, tokens = _tekken(path)
    char_of_byte = {byte: char for char, byte in byte_alphabet().items()}
    num_special = definition["config"]["default_num_special_tokens"]
    ranks = {token: rank for rank, token in enumerate(tokens)}

    def text(token: bytes) -> str:
        return "".join(map(char_of_byte.__getitem__, token))

    split = {"type": "Split", "pattern": {"Regex": definition["config"]["pattern"]}, "behavior": "Isolated"}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "added_tokens": [{"id": i, "content": f"<SPECIAL_{i}>", "special": True} for i in range(num_special)],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_]},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {text(token): rank + num_special for rank, token in enumerate(tokens)},
            "merges": [list(map(text, _last_merge(token, ranks))) for token in tokens if len(token) > 1],
        },
    }


def _last_merge(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The two parts that a token is merged from, when all merges of lower rank are done."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(a + b, len(ranks)) for a, b in pairwise(parts)]
        best = min(joined)
        if best >= ranks[token]:
            break
        i = joined.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    assert len(parts) == 2, token
    return parts


CHECKS = {
    "folders": check_folder,
    "sentencepiece": check_sentencepiece,
    "tekken": check_tekken,
    "fixtures": check_fixture,
    "llama-cpp": check_llama_cpp,
}


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in CHECKS:
        raise SystemExit(__doc__)
    for argument in sys.argv[2:]:
        CHECKS[sys.argv[1]](argument)


if __name__ == "__main__":
    main()
