"""The companions of a tokenizer file: which tokens begin and end texts, further added tokens, the chat template."""

from pathlib import Path
from typing import Any

from hotloop.errors import ModelFileError
from hotloop.weights.hf.json_files import read_bounded, read_optional_json
from hotloop.weights.hf.pieces import AddedToken
from hotloop.weights.hf.tokenizer_json import read_added_tokens

MAX_TEMPLATE_BYTES = 1 << 20
_PARTS = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")  # that a token may have to play


class Companions:
    """The files beside a tokenizer, read once; each question is answered by the first that knows."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelFileError naming a malformed file."""
        self._folder = folder
        self._config_path = folder / "tokenizer_config.json"
        self._config = read_optional_json(self._config_path)
        self._special_map = read_optional_json(folder / "special_tokens_map.json")
        self._model_config = read_optional_json(folder / "config.json")
        self._generation_config = read_optional_json(folder / "generation_config.json")

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
        special = [token["content"] for token in self._stated("additional_special_tokens")]
        entries = [
            {"id": token_id, "content": text, "special": text in special}
            for text, token_id in read_optional_json(path).items()
        ]
        return read_added_tokens(entries, path)

    def token_text(self, name: str) -> str | None:
        """The text of the token that is configured as bos, eos, unk or pad."""
        stated = self._stated(f"{name}_token")
        return stated[0]["content"] if stated else None

    def special_tokens(self) -> list[dict[str, Any]]:
        """Content and flags of all tokens that are named as special, but for those of added_tokens."""
        named = [token for name in _PARTS for token in self._stated(f"{name}_token")[:1]]
        return named + self._stated("additional_special_tokens")

    def _stated(self, key: str) -> list[dict[str, Any]]:
        """Content and flags of the tokens at a key."""
        values = [config.get(key) for config in (self._config, self._special_map)]
        tokens = [token for value in values for token in (value if isinstance(value, list) else [value])]
        stated = [token if isinstance(token, dict) else {"content": token} for token in tokens]
        return [token for token in stated if isinstance(token.get("content"), str)]

    def tokenizer_class(self) -> str | None:
        """The class in transformers, where one is named."""
        named = [config.get("tokenizer_class") for config in (self._config, self._model_config)]
        return next((name for name in named if isinstance(name, str)), None)

    def model_type(self) -> str | None:
        """The model's class."""
        name = self._model_config.get("model_type")
        return name if isinstance(name, str) else None

    def adds_prefix_space(self) -> bool:
        """Whether texts begin with a space, by the configuration."""
        return self._config.get("add_prefix_space") is True

    def named_texts(self) -> set[str]:
        """Texts of all tokens that have a part to play, and are none of the text therefore."""
        texts = {self.token_text(name) for name in _PARTS}
        return {text for text in texts if text is not None}

    def token_ids(self, name: str) -> list[int]:
        """Ids of bos, eos or pad tokens as the model's configurations state them, each once.

        Raises ModelFileError for a value that is no id: a model without its end token would never end.
        """
        ids: list[int] = []
        for file, config in (("generation_config.json", self._generation_config), ("config.json", self._model_config)):
            value = config.get(f"{name}_token_id")
            stated = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in stated):
                raise ModelFileError(
                    f"{self._folder / file}: {name}_token_id must be a token id or a list of them, not {value!r:.60}"
                )
            ids += [i for i in stated if i >= 0]  # -1 stands for none
        return list(dict.fromkeys(ids))

    def adds(self, name: str) -> bool | None:
        """Whether texts get the bos or eos token; None where the configuration does not say."""
        configured = self._config.get(f"add_{name}_token")
        return configured if isinstance(configured, bool) else None

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
