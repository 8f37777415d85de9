"""The companions of a tokenizer file: which tokens begin and end texts, further added tokens, the chat template."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_optional_json
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
        self._model_configs = [read_optional_json(folder / f"{name}.json") for name in ("generation_config", "config")]

    def added_tokens(self) -> list[AddedToken]:
        """Added tokens of the configuration, which may know more than the tokenizer file."""
        decoder = self._config.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict):
            raise ModelFileError(f"{self._config_path}: added_tokens_decoder must be an object, not {decoder!r:.60}")
        entries = [
            {**entry, "id": int(key)} if isinstance(entry, dict) and key.isdecimal() and len(key) < 10 else entry
            for key, entry in decoder.items()
        ]
        return read_added_tokens(entries, self._config_path)

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
        """Ids of bos, eos or pad tokens as the model's configurations state them, each once."""
        ids: list[int] = []
        for config in self._model_configs:
            value = config.get(f"{name}_token_id")
            ids += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and i >= 0]
        return list(dict.fromkeys(ids))

    def adds(self, name: str, text: str | None) -> bool | None:
        """Whether texts get the bos or eos token `text`: by the configuration, else by the tokenizer's own template."""
        configured = self._config.get(f"add_{name}_token")
        if isinstance(configured, bool):
            return configured
        if not self._definition:
            return None
        before, after = self._around()
        return text is not None and (before == [text] if name == "bos" else after == [text])

    def prefix(self) -> list[str]:
        """Texts of the tokens that the tokenizer's own template puts before every text."""
        return self._around()[0]

    def _around(self) -> tuple[list[str], list[str]]:
        """Texts of the tokens that the tokenizer's template puts before and after a text."""
        for step in _processors(self._definition.get("post_processor")):
            single = step.get("single")
            if step.get("type") == "TemplateProcessing" and isinstance(single, list):
                texts = [_special_text(part) for part in single]
                middle = texts.index(None) if None in texts else len(texts)
                return [t for t in texts[:middle] if t is not None], [t for t in texts[middle:] if t is not None]
        return [], []

    def chat_template(self) -> str | None:
        """The template: a file of its own, or in the configuration; of several the one called default."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            data = path.read_bytes()[: MAX_TEMPLATE_BYTES + 1]
            if len(data) > MAX_TEMPLATE_BYTES:
                raise ModelFileError(f"{path}: has more than {MAX_TEMPLATE_BYTES} bytes, the limit for this file")
            return data.decode("utf-8", "replace")
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


def _processors(step: object) -> Iterator[dict[str, Any]]:
    if isinstance(step, dict):
        inner = step.get("processors")
        for part in inner if isinstance(inner, list) else [step]:
            if isinstance(part, dict):
                yield part
