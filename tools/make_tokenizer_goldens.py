"""Make the tokenizer goldens, and compare hotloop's tokenizers with Hugging Face's and llama.cpp's.

The oracle is the `tokenizers` library running a complete tokenizer.json: a published one where ORACLES holds
it, else one put together here from a model file's vocabulary and the published pipeline of its family.

    make_tokenizer_goldens.py small                   goldens of two small vocabularies trained here
    make_tokenizer_goldens.py real MODELS ORACLES     goldens of the real vocabularies
    make_tokenizer_goldens.py check MODELS ORACLES    compare only, also vocabularies without a model file
    make_tokenizer_goldens.py llama-cpp MODELS        list where llama.cpp differs (needs llama-cpp-python)

MODELS is a folder of GGUF files, ORACLES one of <name>.json files (llama2, llama3, gemma3, qwen3, gpt2).
"""

import base64
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from hotloop.pre_tokenizers import PRE_TOKENIZERS  # noqa: E402
from hotloop.text.tokenizer import Tokenizer  # noqa: E402
from hotloop.weights.gguf import GGUFFile  # noqa: E402
from nasty_corpus import nasty_corpus  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
NUM_SAMPLES, FEW_SAMPLES = 200, 40  # strings whose ids are written out, so that a failure can be read
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

MODEL_FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5": "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
    "gemma3": "gemma-3-270m.Q4_K_M.gguf",
}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(digits: str, *, behavior: str = "Isolated") -> dict[str, Any]:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return _splits(pattern, behavior=behavior)


def _splits(*patterns: str, behavior: str = "Isolated", digits: bool = False) -> dict[str, Any]:
    flags = {"behavior": behavior, "invert": behavior == "Removed"}
    steps: list[dict[str, Any]] = [{"type": "Split", "pattern": {"Regex": p}, **flags} for p in patterns]
    steps += [_DIGITS] if digits else []
    return {"type": "Sequence", "pretokenizers": [*steps, _byte_level(use_regex=False)]}


def _cased(contractions: str, digits: str) -> dict[str, Any]:
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    before = r"[^\r\n\p{L}\p{N}]?"
    return _splits(
        f"{before}[{upper}]*[{lower}]+{contractions}|{before}[{upper}]+[{lower}]*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


# normalizer and pre_tokenizer as the families' published tokenizer.json files have them.
PUBLISHED: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "gpt-2": (None, _byte_level(use_regex=True)),
    "smollm": (None, {"type": "Sequence", "pretokenizers": [_DIGITS, _byte_level(use_regex=True)]}),
    "llama-bpe": (None, _split(r"\p{N}{1,3}")),
    "qwen2": ({"type": "NFC"}, _split(r"\p{N}")),
    "dbrx": (None, _split(r"\p{N}{1,3}", behavior="Removed")),
    "tekken": (None, _cased("", r"\p{N}")),
    "gpt-4o": (None, _cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")),
    "deepseek-coder": (None, _splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", digits=True)),
    # The letters are a page of ranges, written down once.
    "deepseek-llm": (None, _splits(*PRE_TOKENIZERS["deepseek-llm"].splits[:-1], digits=True)),
    "deepseek-v3": (
        None,
        _splits(
            r"\p{N}{1,3}",
            "[一-龥\u3040-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
        ),
    ),
}
_IGNORE_MERGES = ("llama-bpe", "tekken")
_FEW_SAMPLES = ("dbrx", "tekken", "gpt-4o", "deepseek-coder", "deepseek-llm", "deepseek-v3")
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PREFIXED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _REPLACE]}


# --- oracles ---


def oracle_from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer.json with the vocabulary of a model file and the published pipeline of its family."""
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = [int(t) for t in metadata["tokenizer.ggml.token_type"]]
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    if metadata["tokenizer.ggml.model"] == "llama":
        tokens = [t.replace(" ", "▁") if k == USER_DEFINED else t for t, k in zip(tokens, types, strict=True)]
        normalizer = _PREFIXED if metadata["tokenizer.ggml.add_space_prefix"] else _REPLACE
        pre_tokenizer = None
        scores = [
            0.0 if kind == USER_DEFINED else float(score)
            for score, kind in zip(metadata["tokenizer.ggml.scores"], types, strict=True)
        ]
        model["unk_token"] = tokens[metadata["tokenizer.ggml.unknown_token_id"]]
        model |= {"fuse_unk": True, "byte_fallback": True, "merges": _merges_by_score(tokens, scores, types)}
    else:
        normalizer, pre_tokenizer = PUBLISHED[metadata["tokenizer.ggml.pre"]]
        model |= {"fuse_unk": False, "byte_fallback": False, "merges": metadata["tokenizer.ggml.merges"]}
        model["ignore_merges"] = metadata["tokenizer.ggml.pre"] in _IGNORE_MERGES
    model["vocab"] = {text: i for i, text in enumerate(tokens)}
    added = [
        _added(i, tokens[i], special=kind != USER_DEFINED)
        for i, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    parts = {
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "model": model,
    } | parts


def _merges_by_score(tokens: list[str], scores: list[float], types: list[int]) -> list[list[str]]:
    """All splits, sorted by score and lengths of the parts, as in the transformers library's conversion.

    Control and byte tokens are left out: no published file has a merge that makes one.
    """
    known = set(tokens)
    found = []
    for text, score, kind in zip(tokens, scores, types, strict=True):
        if kind not in (NORMAL, USER_DEFINED):
            continue
        pieces = ((text[:k], text[k:]) for k in range(1, len(text)))
        found += [(left, right, score) for left, right in pieces if left in known and right in known]
    found.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [[left, right] for left, right, _ in found]


def _added(token_id: int, text: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": text, "special": special} | flags


def metadata_from_tokenizer_json(published: Mapping[str, Any], pre: str) -> dict[str, Any]:
    """What a model file would say about a published vocabulary."""
    model = published["model"]
    texts = {i: text for text, i in model["vocab"].items()}
    types = dict.fromkeys(texts, NORMAL)
    for added in published["added_tokens"]:
        texts[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    ids = range(max(texts) + 1)
    metadata: dict[str, Any] = {"tokenizer.ggml.tokens": [texts[i] for i in ids]}
    if model.get("byte_fallback"):
        for i in ids:
            if len(texts[i]) == 6 and texts[i].startswith("<0x"):
                types[i] = BYTE
        # The published merges are grouped by the token they make, best first.
        rank: dict[str, int] = {}
        for merge in model["merges"]:
            rank.setdefault("".join(_pair(merge)), len(rank))
        scores = [float(-rank.get(texts[i], len(rank))) for i in ids]
        metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores}
        metadata |= {"tokenizer.ggml.unknown_token_id": model["vocab"]["<unk>"]}
    else:
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        metadata |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.merges": merges,
        }
    metadata["tokenizer.ggml.add_bos_token"] = False
    metadata["tokenizer.ggml.token_type"] = [types[i] for i in ids]
    return metadata


class Oracle:
    """Hugging Face's ids, with control-token texts parsed or literal."""

    def __init__(self, tokenizer_json: dict[str, Any]) -> None:
        self._parsing = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json))
        self._literal = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json))
        self._literal.encode_special_tokens = True

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        pipeline = self._parsing if parse_special else self._literal
        ids: list[int] = pipeline.encode(text, add_special_tokens=False).ids
        return ids


def real_vocabularies(models: Path, oracles: Path) -> Iterator[tuple[str, Mapping[str, Any], Oracle, str]]:
    """Name, metadata, oracle and its origin, for every vocabulary that is at hand."""
    for name, published in (("smollm2", None), ("qwen2.5", "qwen3"), ("gemma3", "gemma3")):
        metadata = GGUFFile.open(models / MODEL_FILES[name]).metadata
        assembled = oracle_from_metadata(metadata)
        if published is None:
            yield name, metadata, Oracle(assembled), "published pipeline over the model file's vocabulary"
            continue
        tokenizer_json = json.loads((oracles / f"{published}.json").read_text())
        _assert_same_vocabulary(assembled, tokenizer_json)
        # Which added tokens exist and which of them are control tokens is the model file's word: the
        # published file may be of a later release (Qwen 3 adds tokens to Qwen 2.5's).
        tokenizer_json["added_tokens"] = assembled["added_tokens"]
        tokenizer_json["model"]["vocab"] = assembled["model"]["vocab"]
        yield name, metadata, Oracle(tokenizer_json), f"published tokenizer.json of {published}"
    for name, pre in (("llama3", "llama-bpe"), ("gpt2", "gpt-2"), ("llama2", "")):
        tokenizer_json = json.loads((oracles / f"{name}.json").read_text())
        derived = metadata_from_tokenizer_json(tokenizer_json, pre)
        yield name, derived, Oracle(tokenizer_json), f"published tokenizer.json of {name}"


def _assert_same_vocabulary(assembled: dict[str, Any], published: dict[str, Any]) -> None:
    ours, theirs = assembled["model"]["vocab"], published["model"]["vocab"]
    differing = [text for text, i in theirs.items() if ours.get(text) != i]
    assert not differing, f"{len(differing)} texts with another id, first {differing[:5]}"
    assert [*map(_pair, assembled["model"]["merges"])] == [*map(_pair, published["model"]["merges"])]


def _pair(merge: str | list[str]) -> tuple[str, ...]:
    return tuple(merge.split(" ") if isinstance(merge, str) else merge)


# --- commands ---


def compare(name: str, metadata: Mapping[str, Any], oracle: Oracle, origin: str) -> None:
    """Print the number of strings whose ids differ from the oracle's, and the first of them."""
    ours = Tokenizer.from_metadata(metadata)
    for parse_special in (False, True):
        wrong = []
        for text in nasty_corpus():
            expected = oracle.encode(text, parse_special=parse_special)
            actual = ours.encode(text, add_special=False, parse_special=parse_special)
            if actual != expected:
                wrong.append(f"  {text!r}\n    oracle  {expected}\n    hotloop {actual}")
        print(f"{name}: {len(wrong)} of {len(nasty_corpus())} strings differ ({parse_special=}; {origin})")
        print(*wrong[:5], sep="\n", end="\n" if wrong else "")


def ids_hash(ids: list[int]) -> int:
    """CRC-32 of the ids as little-endian u32."""
    return zlib.crc32(np.asarray(ids, "<u4").tobytes())


def write_golden(name: str, oracle: Oracle, origin: str, num_samples: int = NUM_SAMPLES) -> None:
    """One file per vocabulary: a hash for each string and mode, and the ids of some strings."""
    literal, parsed = ([oracle.encode(text, parse_special=flag) for text in nasty_corpus()] for flag in (False, True))

    def packed(all_ids: list[list[int]]) -> str:
        hashes = np.asarray([ids_hash(ids) for ids in all_ids], "<u4")
        return base64.b64encode(hashes.tobytes()).decode()

    samples = range(0, len(parsed), len(parsed) // num_samples)
    golden = {
        "oracle": origin,
        "literal_crc32": packed(literal),
        "parsed_crc32": packed(parsed),
        "parsed_ids": {str(i): parsed[i] for i in samples if len(parsed[i]) <= 60},
    }
    _write_json(f"tokenizer_{name}.json", golden)


def _write_json(name: str, value: dict[str, Any]) -> None:
    path = GOLDEN / name
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def make_real(models: Path, oracles: Path, *, write: bool) -> None:
    """Compare every vocabulary at hand, and write the goldens of those that a model file carries."""
    for name, metadata, oracle, origin in real_vocabularies(models, oracles):
        compare(name, metadata, oracle, origin)
        if write and name in MODEL_FILES:
            write_golden(name, oracle, origin)


def make_small() -> None:
    """Train a byte-level and a SentencePiece-like vocabulary on the corpus; write both with their goldens."""
    byte_level, sentencepiece = _small_byte_level(), _small_sentencepiece()
    _write_json("tokenizer_small_bpe_vocabulary.json", byte_level)
    _write_json("tokenizer_small_spm_vocabulary.json", sentencepiece)
    variants = [(f"small_bpe_{pre}", byte_level | {"tokenizer.ggml.pre": pre}) for pre in PUBLISHED]
    for name, prefix in (("plain", False), ("prefix", True)):
        variants.append((f"small_spm_{name}", sentencepiece | {"tokenizer.ggml.add_space_prefix": prefix}))
    origin = "published pipeline over a vocabulary trained by this script"
    for name, metadata in variants:
        oracle = Oracle(oracle_from_metadata(metadata))
        compare(name, metadata, oracle, origin)
        few = metadata.get("tokenizer.ggml.pre") in _FEW_SAMPLES
        write_golden(name, oracle, origin, FEW_SAMPLES if few else NUM_SAMPLES)


def _trained(pipeline: tokenizers.Tokenizer, trainer: trainers.BpeTrainer) -> dict[str, Any]:
    pipeline.train_from_iterator(nasty_corpus(), trainer)
    model: dict[str, Any] = json.loads(pipeline.to_str())["model"]
    return model


def _small_byte_level() -> dict[str, Any]:
    pipeline = tokenizers.Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    control, user_defined = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=control, show_progress=False
    )
    model = _trained(pipeline, trainer)
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [CONTROL if text in control else NORMAL for text in tokens] + [USER_DEFINED] * len(user_defined)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens + user_defined,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _small_sentencepiece() -> dict[str, Any]:
    control, user_defined = (
        ["<unk>", "<s>", "</s>", "<end_of_turn>"],
        ["\n\n", "\n\n\n", "  ", "   ", "<table>"],
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pipeline = tokenizers.Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    alphabet = [chr(c) for c in range(0x21, 0x7F)] + ["▁", "\n", "é"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, limit_alphabet=len(alphabet), initial_alphabet=alphabet, show_progress=False
    )
    model = _trained(pipeline, trainer)
    fixed = {*control, *byte_tokens, *(text.replace(" ", "▁") for text in user_defined)}
    learned = [t for t in sorted(model["vocab"], key=model["vocab"].__getitem__) if t not in fixed]
    # Single characters rank last, as in trained SentencePiece models.
    learned_scores = [float(-i) if len(text) > 1 else float(-len(learned) - i) for i, text in enumerate(learned)]
    kinds = ((UNKNOWN, 1), (CONTROL, len(control) - 1), (BYTE, 256), (USER_DEFINED, len(user_defined)))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*control, *byte_tokens, *user_defined, *learned],
        "tokenizer.ggml.token_type": [k for k, n in (*kinds, (NORMAL, len(learned))) for _ in range(n)],
        "tokenizer.ggml.scores": [-1000.0] * 4 + [0.0] * 256 + [-1000.0] * len(user_defined) + learned_scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def compare_llama_cpp(models: Path) -> None:
    """Print where llama.cpp differs from hotloop, whose ids equal Hugging Face's; shortest strings first."""
    from llama_cpp import Llama

    for name, file_name in MODEL_FILES.items():
        theirs = Llama(str(models / file_name), vocab_only=True, verbose=False)
        ours = Tokenizer.from_metadata(GGUFFile.open(models / file_name).metadata)
        for parse_special in (False, True):
            differing = []
            for text in nasty_corpus():
                expected = theirs.tokenize(text.encode(), add_bos=False, special=parse_special)
                actual = ours.encode(text, add_special=False, parse_special=parse_special)
                if expected != actual:
                    differing.append(f"  {text!r}\n    llama.cpp {expected}\n    hotloop   {actual}")
            print(f"{name}: llama.cpp differs on {len(differing)} of {len(nasty_corpus())} ({parse_special=})")
            print(*sorted(differing, key=len)[:8], sep="\n", end="\n" if differing else "")


def main() -> None:
    match sys.argv[1:]:
        case ["small"]:
            make_small()
        case ["real" | "check" as command, models_folder, oracles_folder]:
            make_real(Path(models_folder), Path(oracles_folder), write=command == "real")
        case ["llama-cpp", models_folder]:
            compare_llama_cpp(Path(models_folder))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
