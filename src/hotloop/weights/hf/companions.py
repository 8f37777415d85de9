"""The companions of a tokenizer file: which tokens begin and end texts, further added tokens, the chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_bounded, read_optional_json
from hotloop.weights.hf.pieces import AddedToken
from hotloop.weights.hf.tokenizer_json import read_added_tokens

MAX_TEMPLATE_BYTES = 1 << 20


class Companions:
    """The files beside a tokenizer, read once; each question is answered by the first that knows."""

    def __init__(self, folder: Path, definition: Mapping[str, Any]) -> None:
        """definition: of tokenizer.json, empty where there is none. Raises ModelFileError naming a malformed file."""
        self._folder = folder
        self._definition = definition
        self._config_path = folder / "tokenizer_config.json"
        self._config = read_optional_json(self._config_path)
        self._special_map = read_optional_json(folder / "special_tokens_map.json")
        self._model_configs = {name: read_optional_json(folder / name) for name in ("generation_config.json", "config.json")}

    def added_tokens(self) -> list[AddedToken]:
        """Added tokens of the configuration, which may know more than the tokenizer file; before it had any, of a file."""
        decoder = self._config.get("added_tokens_decoder")
        if decoder is None:
            return self._added_tokens_file()
        if not isinstance(decoder, dict):
            raise ModelFileError(f"{self._config_path}: added_tokens_decoder must be an object, not {decoder!r:.60}")
        entries = [
            {**entry, "id": int(key)} if isinstance(entry, dict) and key.isdecimal() and len(key) < 10 else entry
            for key, entry in decoder.items()
        ]
        return read_added_tokens(entries, self._config_path)

    def _added_tokens_file(self) -> list[AddedToken]:
        path = self._folder / "added_tokens.json"
        further = [config.get("additional_special_tokens") for config in (self._config, self._special_map)]
        special = [text for texts in further if isinstance(texts, list) for text in texts]
        entries = [
            {"id": token_id, "content": text, "special": text in special}
            for text, token_id in read_optional_json(path).items()
        ]
        return read_added_tokens(entries, path)

    def token_text(self, name: str) -> str | None:
        """The text of the token that is configured as bos, eos, unk or pad."""
        for config in (self._config, self._special_map):
            value = config.get(f"{name}_token")
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                return value
        return None

    def named_texts(self) -> set[str]:
        """Texts of all tokens that have a part to play, and are none of the text therefore."""
        texts = {self.token_text(name) for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")}
        return {text for text in texts if text is not None}

    def token_ids(self, name: str) -> list[int]:
        """Ids of bos, eos or pad tokens as the model's configurations state them, each once.

        Raises ModelFileError for a value that is no id: a model without its end token would never end.
        """
        ids: list[int] = []
        for file, config in self._model_configs.items():
            value = config.get(f"{name}_token_id")
            stated = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in stated):
                raise ModelFileError(
                    f"{self._folder / file}: {name}_token_id must be a token id or a list of them, not {value!r:.60}"
                )
            ids += [i for i in stated if i >= 0]  # -1 stands for none
        return list(dict.fromkeys(ids))

    def adds(self, name: str, text: str | None) -> bool | None:
        """Whether texts get the bos or eos token `text`: by the configuration, else by the tokenizer's own template."""
        configured = self._config.get(f"add_{name}_token")
        if isinstance(configured, bool):
            return configured
        if not self._definition:
            return None
        before, after = self.around()
        return text is not None and (before == [text] if name == "bos" else after == [text])

    def around(self) -> tuple[list[str], list[str]]:
        """Texts of the tokens that the tokenizer's own post-processor puts before and after every text.

        Raises ModelFileError for a post-processor that may do something else.
        """
        around: tuple[list[str], list[str]] = [], []
        for step in _processors(self._definition.get("post_processor")):
            found = _tokens_around(step)
            if found is None or (found != ([], []) and around != ([], [])):
                raise ModelFileError(
                    f"{self._folder / 'tokenizer.json'}: its post_processor is none that hotloop has: {step!r:.200}; known are "
                    f"ByteLevel, TemplateProcessing, BertProcessing and RobertaProcessing. Use a GGUF file of this model"
                )
            around = found if found != ([], []) else around
        return around

    def chat_template(self) -> str | None:
        """The template: a file of its own, or in the configuration; of several the one called default."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return read_bounded(path, MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
        template = self._config.get("chat_template")
        if template is None:
            template = read_optional_json(self._folder / "chat_template.json").get("chat_template")
        if isinstance(template, list):
            named = {str(t.get("name")): t.get("template") for t in template if isinstance(t, dict)}
            template = named.get("default", next(iter(named.values()), None))
        if template is not None and not isinstance(template, str):
            raise ModelFileError(f"{self._config_path}: chat_template must be a text, not {template!r:.60}")
        return template


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


def _tokens_around(step: object) -> tuple[list[str], list[str]] | None:
    """Texts of the tokens that one step of a post-processor puts before and after a text; None where that is not known."""
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
