"""Every field of a request body: what it holds and what becomes of it. Parsing and the OpenAPI document follow this list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hotloop.engine.inputs import MAX_SALT_CHARS
from hotloop.sampling_params import (
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_SEQUENCE_BREAKERS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOKEN_IDS,
    MAX_WORD_CHARACTERS,
)
from hotloop.server.structure import RESPONSE_FORMAT_SCHEMA, STRUCTURED_OUTPUTS_SCHEMA
from hotloop.text.tools.use import MAX_TOOLS

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
CHAT: Endpoint = "/v1/chat/completions"
COMPLETIONS: Endpoint = "/v1/completions"
ENDPOINTS: tuple[Endpoint, ...] = (CHAT, COMPLETIONS)

Schema = Mapping[str, Any]
MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """schema: JSON schema of its values; null is always allowed and means the default.

    kind: "sampling", a field of SamplingParams of the same name; "used" otherwise; "live", used by a server and refused in a
    batch file; "ignored", says something about the caller or about storing and nothing about the answer; "fixed", only
    ``values`` are offered, which ask for what happens anyway.
    """

    name: str
    about: str
    schema: Schema
    kind: Literal["sampling", "used", "live", "ignored", "fixed"]
    endpoints: Sequence[Endpoint] = ENDPOINTS
    values: Sequence[Any] = ()


_BOOLEAN = {"type": "boolean"}
_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_INT64}}
_PROMPT = [{"type": "string", "minLength": 1}, {**_TOKEN_IDS, "minItems": 1}]
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_COUNT = {"type": "integer", "minimum": 1, "maximum": MAX_INT64}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": _TEXT,
        "content": {"anyOf": [_TEXT, {"type": "array", "items": {
            "type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": _TEXT},
        }}]},
        "tool_calls": {"type": "array", "items": {
            "type": "object", "required": ["function"],
            "properties": {"function": {
                "type": "object", "required": ["name", "arguments"], "properties": {"name": _TEXT, "arguments": _TEXT},
            }},
        }},
        "tool_call_id": _TEXT,
        "reasoning_content": _TEXT,
    },
}  # fmt: skip
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_NAMED_TOOL = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": _NAME}},
    },
}  # fmt: skip
_TOOL = {
    "type": "object", "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object", "required": ["name"], "additionalProperties": False,
            "properties": {
                "name": _NAME, "description": _TEXT, "strict": _BOOLEAN,
                "parameters": {"type": "object", "properties": {"type": {"const": "object"}}},
            },
        },
    },
}  # fmt: skip
_STREAM_OPTIONS = {
    "type": "object",
    "properties": {
        "include_usage": _BOOLEAN, "continuous_usage_stats": _BOOLEAN, "include_obfuscation": {"const": False},
    },
    "additionalProperties": False,
}  # fmt: skip


def _range(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _words(most: int) -> Schema:
    word = {"type": "string", "minLength": 1, "maxLength": MAX_WORD_CHARACTERS}
    return {"type": "array", "items": word, "maxItems": most}


FIELDS: tuple[Field, ...] = (
    Field("model", "Name of the served model; left out, it is that one.", _TEXT, "used"),
    Field("messages", "The conversation, rendered by the model's chat template.",
          {"type": "array", "items": _MESSAGE, "minItems": 1}, "used", (CHAT,)),
    Field("prompt", "A text or token ids, or a list of them: one set of choices for each.",
          {"anyOf": [*_PROMPT, {"type": "array", "items": {"anyOf": _PROMPT}, "minItems": 1}]},
          "used", (COMPLETIONS,)),
    Field("max_tokens", "At most so many output tokens; what does not fit in the context is cut off.", _COUNT, "used"),
    Field("max_completion_tokens", "The newer name of max_tokens.", _COUNT, "used", (CHAT,)),
    Field("logprobs", "Whether each token comes with its logprob.", _BOOLEAN, "used", (CHAT,)),
    Field("top_logprobs", "And with so many of the top ones.",
          {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}, "used", (CHAT,)),
    Field("logprobs", "Each token comes with its logprob and so many of the top ones.",
          {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}, "used", (COMPLETIONS,)),
    Field("prompt_logprobs", "The prompt's tokens come with their logprobs and so many of the top ones.",
          {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS}, "used"),
    Field("logprobs_mode", "raw: logprobs are before any processing. processed: of what the token was drawn from.",
          {"enum": ["raw", "processed"]}, "sampling"),
    Field("echo", "Whether a choice begins with the prompt.", _BOOLEAN, "used", (COMPLETIONS,)),
    Field("temperature", "0 is greedy. Default: the model's recommendation, else 1.",
          {"type": "number", "minimum": 0}, "sampling"),
    Field("top_p", "Keep the smallest set of tokens with this mass.",
          {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "sampling"),
    Field("top_k", "Keep the so many most probable tokens; 0 and -1 are off.",
          {"type": "integer", "minimum": -1, "maximum": MAX_INT64}, "sampling"),
    Field("min_p", "Keep tokens with at least this share of the top one's probability.", _range(0, 1), "sampling"),
    Field("typical_p", "Keep the tokens of the most usual surprise with this mass.",
          {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "sampling"),
    Field("top_n_sigma", "Keep tokens this many standard deviations of the logits below the top one; 0 and -1 are off.",
          {"anyOf": [{"type": "number", "minimum": 0}, {"const": -1}]}, "sampling"),
    Field("xtc_probability", "How often the top choices are excluded; 0 is off.", _range(0, 1), "sampling"),
    Field("xtc_threshold", "The share that makes a token a top choice.", _range(0, 1), "sampling"),
    Field("mirostat", "2: instead of the filters, a cut that follows the surprise of what was drawn; 0 is off.",
          {"enum": [0, 2]}, "sampling"),
    Field("mirostat_tau", "The surprise it aims at, in bits.", _range(0, 100), "sampling"),
    Field("mirostat_eta", "How fast it follows.", _range(0, 1), "sampling"),
    Field("repetition_penalty", "Divides the logits of tokens of prompt and output; 1 is off.",
          {"type": "number", "exclusiveMinimum": 0}, "sampling"),
    Field("presence_penalty", "Taken from the logits of tokens in the output, once.", _range(-2, 2), "sampling"),
    Field("frequency_penalty", "Taken from the logits of tokens in the output, per occurrence.", _range(-2, 2), "sampling"),
    Field("dry_multiplier", "Taken from the logits of tokens that would go on repeating a sequence, times dry_base to the power"
          " of what its length exceeds dry_allowed_length by; 0 is off.", _range(0, 1e6), "sampling"),
    Field("dry_base", "See dry_multiplier.", _range(1, 1e6), "sampling"),
    Field("dry_allowed_length", "See dry_multiplier.", _COUNT, "sampling"),
    Field("dry_sequence_breakers", "Texts over which no repetition reaches.", _words(MAX_SEQUENCE_BREAKERS), "sampling"),
    Field("allowed_token_ids", "Nothing else is drawn.", {**_TOKEN_IDS, "minItems": 1, "maxItems": MAX_TOKEN_IDS}, "sampling"),
    Field("bad_words", "Texts whose tokens are not drawn in a row.", _words(MAX_BAD_WORDS), "sampling"),
    Field("logit_bias", "Token id (as a text) to what is added to its logit.",
          {"type": "object", "additionalProperties": _range(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS),
           "maxProperties": MAX_TOKEN_IDS}, "sampling"),
    Field("n", "Answers to each prompt.", {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}, "sampling"),
    Field("seed", "The same seed gives the same answer. Default: a fresh one, which the response names.",
          {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}, "sampling"),
    Field("min_tokens", "No stop before so many output tokens.",
          {"type": "integer", "minimum": 0, "maximum": MAX_INT64}, "sampling"),
    Field("stop", "Texts that end the answer.",
          {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOP_STRINGS}]},
          "sampling"),
    Field("stop_token_ids", "Tokens that end the answer.", _TOKEN_IDS | {"maxItems": MAX_TOKEN_IDS}, "sampling"),
    Field("ignore_eos", "Whether to go on after the model's end tokens.", _BOOLEAN, "sampling"),
    Field("include_stop_str_in_output", "Whether the text that ended the answer is part of it.", _BOOLEAN, "sampling"),
    Field("skip_special_tokens", "Whether control tokens have no text.", _BOOLEAN, "sampling"),
    Field("response_format", "The form of the answer: any text, a JSON object, or JSON that a schema describes.",
          RESPONSE_FORMAT_SCHEMA, "used"),
    Field("structured_outputs", "The form of the answer: one of json (a schema), json_object, regex, choice and grammar.",
          STRUCTURED_OUTPUTS_SCHEMA, "used"),
    Field("tools", "Functions that the answer may call; their arguments keep to their parameters' schema.",
          {"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}, "used", (CHAT,)),
    Field("tool_choice", "auto: text or calls. none: tools are not shown. required: calls. Or the function to call.",
          {"anyOf": [{"enum": ["auto", "none", "required"]}, _NAMED_TOOL]}, "used", (CHAT,)),
    Field("parallel_tool_calls", "Whether an answer may have several calls. Default: true.", _BOOLEAN, "used", (CHAT,)),
    Field("chat_template_kwargs", "More variables for the chat template, such as enable_thinking.", {"type": "object"}, "used",
          (CHAT,)),
    Field("thinking_budget", "At most so many tokens of reasoning, for models that think before they answer.",
          {"type": "integer", "minimum": 0, "maximum": MAX_INT64}, "sampling", (CHAT,)),
    Field("return_token_ids", "Whether choices come with token_ids.", _BOOLEAN, "used"),
    Field("stream", "Whether the answer comes as server-sent events while it is made.", _BOOLEAN, "live"),
    Field("stream_options", "include_usage: a last chunk with usage. continuous_usage_stats: and usage in every chunk.",
          _STREAM_OPTIONS, "live"),
    Field("timeout_s", "Seconds from its arrival after which the request ends with an error, wherever it is.",
          {"type": "number", "exclusiveMinimum": 0}, "live"),
    Field("priority", "Lower goes first among the requests of one API key.",
          {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}, "live"),
    Field("truncate_prompt_tokens", "Keep only the so many last tokens of each prompt, -1: what fits; usage says how many were"
          " cut off.", {"anyOf": [_COUNT, {"const": -1}]}, "sampling"),
    Field("cache_salt", "Prompts share cached prefixes only under the same salt.",
          _TEXT | {"maxLength": MAX_SALT_CHARS}, "live"),
    Field("user", "No effect.", {}, "ignored"),
    Field("metadata", "No effect.", {}, "ignored"),
    Field("store", "No effect.", {}, "ignored"),
    Field("service_tier", "No effect.", {}, "ignored"),
    Field("safety_identifier", "No effect.", {}, "ignored"),
    Field("prompt_cache_key", "No effect; see cache_salt.", {}, "ignored"),
    Field("prompt_cache_retention", "No effect.", {}, "ignored"),
    Field("verbosity", "No effect.", {}, "ignored"),
    Field("best_of", "Not offered.", {"const": 1}, "fixed", values=[1]),
    Field("suffix", "Not offered.", {"const": ""}, "fixed", values=[""]),
    Field("functions", "Not offered.", {"const": []}, "fixed", values=[[]]),
    Field("function_call", "Not offered.", {"enum": ["none", "auto"]}, "fixed", values=["none", "auto"]),
    Field("modalities", "Not offered.", {"const": ["text"]}, "fixed", values=[["text"]]),
    Field("audio", "Not offered.", {"type": "null"}, "fixed"),
    Field("prediction", "Not offered.", {"type": "null"}, "fixed"),
    Field("reasoning_effort", "Not offered.", {"type": "null"}, "fixed"),
    Field("web_search_options", "Not offered.", {"type": "null"}, "fixed"),
)  # fmt: skip

FIELDS_OF: Mapping[Endpoint, Mapping[str, Field]] = {
    endpoint: {field.name: field for field in FIELDS if endpoint in field.endpoints} for endpoint in ENDPOINTS
}
