"""Shapes of answers that no server is needed to see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from hotloop.request import CompletionOutput, Logprob, RequestId, RequestOutput
from hotloop.server.bodies import parse_body
from hotloop.server.fields import COMPLETIONS
from hotloop.server.responses import Head, completion_logprobs, completion_response
from hotloop.text.output_processor import OutputProcessor
from hotloop.text.tokenizer import Tokenizer
from tiny_tokenizer import tokenizer_metadata

HEAD = Head("cmpl-1", 0, "tiny", "fp")


def tokens_of(*, sentencepiece: bool) -> Tokenizer:
    """Adds a BOS, and SentencePiece a space at the beginning of every text."""
    metadata = {**tokenizer_metadata(300, sentencepiece=sentencepiece), "tokenizer.ggml.add_bos_token": True}
    return Tokenizer.from_metadata({**metadata, "tokenizer.ggml.add_space_prefix": True})


def answer(
    tokens: Tokenizer, prompt: str | Sequence[int], output: str, *, num_truncated: int = 0, **fields: Any
) -> dict[str, Any]:
    """The choice of a completion whose model says ``output``."""
    body = parse_body(COMPLETIONS, {"prompt": prompt, "logprobs": 1, **fields})
    text = prompt if isinstance(prompt, str) else None
    prompt_ids = tokens.encode(prompt)[num_truncated:] if isinstance(prompt, str) else list(prompt)
    ids = tokens.encode_after_control(output)
    processor = OutputProcessor(tokens, prompt_ids=prompt_ids)
    said = processor.push(ids).text + processor.finish("stop").text
    choice = CompletionOutput(0, said, ids, [{i: Logprob(-1.0, 1, "?")} for i in ids], "stop")
    whole = RequestOutput(RequestId("r"), text, prompt_ids, [choice], True, 1, num_truncated_tokens=num_truncated)
    whole.prompt_logprobs = [None, *({i: Logprob(-1.0, 1, "?")} for i in prompt_ids[1:])]
    (shown,) = completion_response(HEAD, [whole], body, tokens)["choices"]
    assert isinstance(shown, dict)
    return shown


def placed(choice: dict[str, Any]) -> str:
    """What is found of the tokens where they are said to begin; control tokens and halves of characters are not."""
    logprobs = choice["logprobs"]
    found = zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
    return "".join(token for token, at in found if choice["text"].startswith(token, at))


@pytest.mark.parametrize("sentencepiece", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_text_offset_is_a_position_in_the_text(sentencepiece: bool, echo: bool) -> None:
    tokens = tokens_of(sentencepiece=sentencepiece)
    output = "the hat eats"
    given = answer(tokens, "at the tea", output, echo=echo)
    offsets = given["logprobs"]["text_offset"]
    assert given["text"].lstrip().startswith("at the tea" if echo else "the hat")
    assert offsets[-1] == len(given["text"]) - len(given["logprobs"]["tokens"][-1])
    assert offsets[0] == 0
    assert placed(given).endswith("the hat eats")
    assert placed(given).strip() in given["text"]
    if echo:
        bos, first, *_ = given["logprobs"]["tokens"]
        assert bos not in given["text"]
        assert offsets[:2] == [0, 0]
        assert given["text"].startswith(first.strip())


@pytest.mark.parametrize("sentencepiece", [False, True])
def test_text_offset_behind_ids_and_what_is_left_of_a_prompt(sentencepiece: bool) -> None:
    tokens = tokens_of(sentencepiece=sentencepiece)
    ids = tokens.encode("a<|im_end|>tea", parse_special=True)
    for choice in (
        answer(tokens, ids, "hot", echo=True),  # its control tokens are shown
        answer(tokens, "eat tea", "hot", echo=True, num_truncated=3),
        answer(tokens, [*ids, *tokens.encode_after_control("😊")[:2]], "hot", echo=True),  # half a character at the end
    ):
        assert placed(choice).replace("\ufffd", "") == choice["text"].replace("\ufffd", "")
        assert choice["logprobs"]["text_offset"][-3:] == [len(choice["text"]) - n for n in (3, 2, 1)]


def test_text_offset_stays_in_a_prompt_that_is_normalized() -> None:
    metadata = tokenizer_metadata(300)
    tokens = Tokenizer.from_metadata({**metadata, "tokenizer.ggml.pre": "qwen2"})
    for prompt in ("e\u0301e\u0301 a", "\u0958\u0958"):  # NFC makes one character of two, and two of one
        choice = answer(tokens, prompt, "hot", echo=True)
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert choice["text"] == prompt + "hot"
        assert offsets[-3:] == [len(prompt), len(prompt) + 1, len(prompt) + 2]


def test_of_tokens_with_one_text_the_best_is_told() -> None:  # known faults B14, B18
    """Bytes that begin or go on a character all have the text U+FFFD: a greedy token must not look like a poor one."""
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(300))
    begins = [i for i in range(256) if tokenizer.token_bytes(i).decode("utf-8", "replace") == "\ufffd"][:3]
    (letter,) = tokenizer.encode("e", add_special=False)
    order = [begins[0], letter, begins[1], begins[2]]
    entry = {
        token_id: Logprob(-0.5 * rank, rank, tokenizer.token_bytes(token_id).decode("utf-8", "replace"))
        for rank, token_id in enumerate(order, start=1)
    }
    told = completion_logprobs([begins[0]], [entry], 4, tokenizer, [0])
    assert list(told["top_logprobs"][0].items()) == [("\ufffd", -0.5), ("e", -1.0)]
    assert told["token_logprobs"] == [-0.5]
    drawn_late = completion_logprobs([begins[2]], [{begins[2]: entry[begins[2]], **entry}], 4, tokenizer, [0])
    assert drawn_late["top_logprobs"] == told["top_logprobs"]
    assert drawn_late["token_logprobs"] == [-2.0]


def test_what_is_not_finite_is_null() -> None:  # known fault B17
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(300))
    entry = {65: Logprob(-math.inf, 1, "A")}
    told = completion_logprobs([65], [entry], 1, tokenizer, [0])
    assert (told["token_logprobs"], told["top_logprobs"]) == ([None], [{"A": None}])
