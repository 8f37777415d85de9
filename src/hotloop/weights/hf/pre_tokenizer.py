"""Recognizes the normalizer and pre-tokenizer of a tokenizer.json: which of the known pipelines it spells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.errors import ModelFileError
from hotloop.pre_tokenizers import DIGIT, GPT2_WORDS, PRE_TOKENIZERS

SPACE = "\u2581"  # stands for a space in SentencePiece vocabularies

SpacePrefix = Literal["always", "unless_space", "first", "never"]

# What Metaspace calls them.
_METASPACE: Mapping[object, SpacePrefix] = {"always": "unless_space", "first": "first", "never": "never"}


@dataclass(frozen=True, slots=True)
class ByteLevelPipeline:
    """Words by a known pre-tokenizer, then bytes."""

    pre: str  # name in hotloop.pre_tokenizers
    add_space_prefix: bool


@dataclass(frozen=True, slots=True)
class SentencePiecePipeline:
    """Spaces written as U+2581, no words.

    space_prefix: one more goes before every text between control tokens, before those that do not begin with one, before the
    first text if it does not, or never. same_normalizer: whether hotloop does so by the normalizer that the file has, or none.
    """

    space_prefix: SpacePrefix
    same_normalizer: bool


def recognize(definition: Mapping[str, Any], where: str) -> ByteLevelPipeline | SentencePiecePipeline:
    """The pipeline that a tokenizer.json defines; its model says which of the two families it is of.

    where: the file, for messages.
    Raises ModelFileError for a pipeline that hotloop does not have.
    """
    normalizers = list(_flat(definition.get("normalizer"), "normalizers"))
    pre_tokenizers = list(_flat(definition.get("pre_tokenizer"), "pretokenizers"))
    if any(step.get("type") == "ByteLevel" for step in pre_tokenizers):
        return _byte_level(definition, normalizers, pre_tokenizers, where)
    return _sentencepiece(normalizers, pre_tokenizers, where)


def _byte_level(
    definition: Mapping[str, Any], normalizers: list[dict[str, Any]], steps: list[dict[str, Any]], where: str
) -> ByteLevelPipeline:
    *before, last = steps
    if last.get("type") != "ByteLevel":
        raise _unknown(where, "pre_tokenizer", steps)
    splits = [_regex(step) for step in before]
    if last.get("use_regex", True):
        splits.append(GPT2_WORDS)
    kinds = [step.get("type") for step in normalizers]
    ignores_merges = definition["model"].get("ignore_merges", False)
    if None not in splits and kinds in ([], ["NFC"]):
        for name, known in PRE_TOKENIZERS.items():
            spelled = tuple(map(_spelling, filter(None, splits)))
            if (
                tuple(map(_spelling, known.splits)) == spelled
                and known.normalize_nfc == bool(kinds)
                and known.ignore_merges == bool(ignores_merges)
            ):
                return ByteLevelPipeline(name, bool(last.get("add_prefix_space", True)))
    raise _unknown(where, "normalizer, pre_tokenizer, ignore_merges", [normalizers, steps, ignores_merges])


def _sentencepiece(normalizers: list[dict[str, Any]], steps: list[dict[str, Any]], where: str) -> SentencePiecePipeline:
    kinds = [step.get("type") for step in normalizers]
    replaces_spaces = bool(normalizers) and _replaces_spaces(normalizers[-1])
    # Once every space is a U+2581, nothing is left to split at spaces.
    steps = [step for step in steps if not (replaces_spaces and _splits_at_spaces(step))]
    if not steps and replaces_spaces:
        if kinds == ["Replace"]:
            return SentencePiecePipeline("never", same_normalizer=True)
        if kinds == ["Prepend", "Replace"] and normalizers[0].get("prepend") == SPACE:
            return SentencePiecePipeline("always", same_normalizer=True)
    if not normalizers and len(steps) == 1 and steps[0].get("type") == "Metaspace":
        step = steps[0]
        scheme = step.get("prepend_scheme")
        if step.get("replacement") == SPACE and step.get("split") is False and scheme in _METASPACE:
            return SentencePiecePipeline(_METASPACE[scheme], same_normalizer=scheme != "never")
    raise _unknown(where, "normalizer, pre_tokenizer", [normalizers, steps])


def _flat(step: object, inner: str) -> Iterator[dict[str, Any]]:
    """The steps of a definition, with sequences opened."""
    pending = [step]
    while pending:
        step = pending.pop(0)
        if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(step.get(inner), list):
            pending = [*step[inner], *pending]
        elif step is not None:
            yield step if isinstance(step, dict) else {"type": step}


def _regex(step: dict[str, Any]) -> str | None:
    """The regex whose matches a step isolates; None for another kind of step."""
    match step:
        case {"type": "Digits", "individual_digits": True}:
            return DIGIT
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"}:
            return pattern if not step.get("invert") else None
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Removed", "invert": True}:
            # Keeps what the pattern matches: the same where that is everything.
            return pattern if pattern.endswith(r"|\s+") else None
    return None


def _spelling(pattern: str) -> str:
    """The pattern with line ends written as escapes, as some files have it."""
    return pattern.replace("\r", r"\r").replace("\n", r"\n")


def _replaces_spaces(step: dict[str, Any]) -> bool:
    return step.get("type") == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == SPACE


def _splits_at_spaces(step: dict[str, Any]) -> bool:
    return step.get("type") == "Split" and step.get("pattern") == {"String": " "}


def _unknown(where: str, what: str, value: object) -> ModelFileError:
    known = ", ".join(PRE_TOKENIZERS)
    return ModelFileError(
        f"{where}: its {what} are none that hotloop has: {value!r:.400}; known are those of {known} (byte level), "
        "and of Llama and Gemma (SentencePiece). Use a GGUF file of this model"
    )
