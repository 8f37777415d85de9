"""The post-processor of a tokenizer.json: which tokens it puts before and after every text."""

from pathlib import Path

from hotloop.errors import ModelFileError
from hotloop.weights.hf.pieces import Around


def texts_around(step: object, path: Path) -> Around:
    """Texts of the tokens that a post-processor puts before and after a text.

    path: the file, for messages.
    Raises ModelFileError for a post-processor that may do something else.
    """
    around: Around = [], []
    for each in _processors(step):
        found = _tokens_around(each)
        if found is None or (found != ([], []) and around != ([], [])):
            raise ModelFileError(
                f"{path}: its post_processor is none that hotloop has: {each!r:.200}; known are "
                f"ByteLevel, TemplateProcessing, BertProcessing and RobertaProcessing. Use a GGUF file of this model"
            )
        around = found if found != ([], []) else around
    return around


def _special_text(part: object) -> str | None:
    """The text of a template's special token; None for its sequence."""
    token = part.get("SpecialToken") if isinstance(part, dict) else None
    text = token.get("id") if isinstance(token, dict) else None
    return text if isinstance(text, str) else None


def _processors(step: object) -> list[object]:
    """The steps of a post-processor, with a sequence opened."""
    if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(step.get("processors"), list):
        return list(step["processors"])
    return [] if step is None else [step]


def _tokens_around(step: object) -> Around | None:
    """As `texts_around`, of one step; None where that is not known."""
    match step:
        case {"type": "ByteLevel"}:  # changes offsets only
            return [], []
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [str(first), _], "sep": [str(last), _]}:
            return [first], [last]
        case {"type": "TemplateProcessing", "single": [*single]}:
            texts = [_special_text(part) for part in single]
            if texts.count(None) == 1:
                middle = texts.index(None)
                return [t for t in texts[:middle] if t is not None], [t for t in texts[middle:] if t is not None]
    return None
