"""Shapes of answers that no server is needed to see."""

from __future__ import annotations

import math

from hotloop.request import Logprob
from hotloop.server.responses import completion_logprobs
from hotloop.text.tokenizer import Tokenizer
from tiny_tokenizer import tokenizer_metadata


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
    told = completion_logprobs([begins[0]], [entry], 4, tokenizer, 0)
    assert list(told["top_logprobs"][0].items()) == [("\ufffd", -0.5), ("e", -1.0)]
    assert told["token_logprobs"] == [-0.5]
    drawn_late = completion_logprobs([begins[2]], [{begins[2]: entry[begins[2]], **entry}], 4, tokenizer, 0)
    assert drawn_late["top_logprobs"] == told["top_logprobs"]
    assert drawn_late["token_logprobs"] == [-2.0]


def test_what_is_not_finite_is_null() -> None:  # known fault B17
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(300))
    entry = {65: Logprob(-math.inf, 1, "A")}
    told = completion_logprobs([65], [entry], 1, tokenizer, 0)
    assert (told["token_logprobs"], told["top_logprobs"]) == ([None], [{"A": None}])
