"""HFConfig: a model's config.json, read key by key and remembered, so that no key goes unnoticed.

Missing keys have the value that the model's class in transformers gives them (`Architecture.defaults`); null stands for "none",
as there. A key that nothing reads and that may change the mathematics is an error: see `check_all_used`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hotloop.errors import ModelFileError
from hotloop.weights.model_file import quote

# Keys that do not touch the mathematics of a forward pass: bookkeeping, training, generation defaults.
_HARMLESS_TEXT = """
    architectures auto_map model_type torch_dtype dtype transformers_version transformers.js_config use_cache vocab_size
    bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id prefix initializer_range initializer_factor embedding_initializer_range
    initializer_std mup_init gradient_checkpointing pretraining_tp max_window_layers
    output_attentions output_hidden_states output_scores output_logits return_dict return_dict_in_generate torchscript
    tf_legacy_loss use_bfloat16 pruned_heads tie_encoder_decoder is_decoder chunk_size_feed_forward
    id2label label2id num_labels problem_type finetuning_task task_specific_params tokenizer_class cache_implementation
    attn_implementation use_flash_attention use_flash_attn is_llama_config unsloth_fixed unsloth_version
    temperature top_k top_p typical_p min_p do_sample num_beams num_beam_groups num_return_sequences early_stopping
    max_length min_length max_new_tokens repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size diversity_penalty bad_words_ids exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens remove_invalid_values max_sequence_length
"""
_HARMLESS = frozenset(_HARMLESS_TEXT.split())
_HARMLESS_BEGINNINGS = ("_", "summary_")
_HARMLESS_ENDS = ("dropout", "_pdrop", "_dropout_prob", "_loss_coef", "_token_index")
_LARGEST = float(np.finfo(np.float32).max)
_OFF: tuple[object, ...] = (None, False, 0, "", [], {})


class HFConfig:
    """The keys of one model. values: as the file states them. where: the file, for messages. defaults: of the model's class."""

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._stated = values
        self._values = {**defaults, **values}
        self._where = where
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether there is a value that is not null."""
        return self.raw(name) is not None

    def raw(self, name: str) -> Any:
        """The value as it is, None where there is none."""
        self._used.add(name)
        return self._values.get(name)

    def names(self) -> list[str]:
        """The keys that the file states, in its order."""
        return list(self._stated)

    def states(self, name: str) -> bool:
        """Whether the file itself has a value that is not null."""
        return self._stated.get(name) is not None

    def size(self, name: str, default: int | None = None, *, most: int = 2**31 - 1) -> int:
        """An integer from 1 to `most`. Raises ModelFileError if it is anything else, or missing."""
        value = default if self.raw(name) is None else self.raw(name)
        if type(value) is not int or not 0 < value <= most:
            raise self.error(name, f"must be an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number, as the nearest float32: the precision of a model file's metadata. Raises as `size`."""
        value = default if self.raw(name) is None else self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
            raise self.error(name, "must be a finite number")
        return float(np.float32(value))

    def flag(self, name: str, default: bool = False) -> bool:
        """Raises ModelFileError if it is neither true nor false."""
        value = default if self.raw(name) is None else self.raw(name)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers. Raises as `size`."""
        value = self.raw(name)
        if not isinstance(value, list) or len(value) != count or not all(_is_finite(item) for item in value):
            raise self.error(name, f"must be a list of {count} finite numbers")
        return tuple(float(item) for item in value)

    def section(self, name: str) -> HFConfig | None:
        """The object at `name`, its keys counted apart; None where there is none."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return HFConfig(value, f"{self._where}: {name}")

    def require(self, name: str, *allowed: object) -> None:
        """Of a key that changes the mathematics only the values `allowed` are implemented. Raises ModelFileError for others."""
        value = self.raw(name)
        if not any(type(value) is type(good) and value == good for good in allowed):
            shown = ", ".join(map(repr, allowed))
            raise self.error(name, f"is not implemented; hotloop computes {shown} only")

    def error(self, name: str, problem: str) -> ModelFileError:
        """An error about a key, naming file, key and value."""
        value = self._values.get(name)
        shown = "missing" if value is None else f"{value!r:.60}"
        return ModelFileError(f"{self._where}: {quote(name)} ({shown}) {problem}")

    def check_all_used(self, harmless: Sequence[str] = ()) -> None:
        """Raise ModelFileError naming every key that was not read and may change the mathematics.

        What is null, false, zero or empty is off.
        """
        unknown = [
            f"{quote(name)} = {value!r:.60}"
            for name, value in self._stated.items()
            if name not in self._used
            and name not in _HARMLESS
            and name not in harmless
            and not name.startswith(_HARMLESS_BEGINNINGS)
            and not name.endswith(_HARMLESS_ENDS)
            and value not in _OFF
        ]
        if unknown:
            raise ModelFileError(
                f"{self._where}: keys that hotloop does not implement, and that may change the result: "
                f"{', '.join(sorted(unknown)[:20])}; if you know that one changes nothing, remove it from the file"
            )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
