"""Every sampling parameter does what it says, or is refused; what is reported does not depend on them."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engines import assert_idle
from hotloop import LLM, GenerationError, SamplingParams, StructuredOutputsParams
from hotloop.errors import InvalidRequestError
from hotloop.request import CompletionOutput
from hotloop.weights.catalog import catalog

PROMPT = "x y"
LENGTH = 10  # tokens that `ending` writes before its EOS


@pytest.fixture
def ending(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """An LLM that wants to end its answers after LENGTH tokens, and again and again if it is not let."""
    prompt_tokens = len(llm.tokenizer.encode(PROMPT))
    forward = llm._runner.forward

    def prefer_eos(batch: Any) -> np.ndarray:
        logits = forward(batch).copy()
        if batch.seq_lens[0] >= prompt_tokens + LENGTH:
            logits[:, sorted(llm.tokenizer.eos_token_ids)] += 1e4
        return logits

    monkeypatch.setattr(llm._runner, "forward", prefer_eos)
    return llm


def whole_answer(llm: LLM, **params: Any) -> tuple[list[CompletionOutput], object]:
    (output,) = llm.generate(PROMPT, SamplingParams(**{"temperature": 0, **params}))
    return output.outputs, output.prompt_logprobs


def answers(llm: LLM, **params: Any) -> list[CompletionOutput]:
    return whole_answer(llm, **params)[0]


def answer(llm: LLM, **params: Any) -> CompletionOutput:
    return answers(llm, **params)[0]


def some_token(llm: LLM) -> int:
    """A token of the greedy answer, not the first, that has a text of its own."""
    return next(i for i in answer(llm).token_ids[2:] if llm.tokenizer.decode([i]).isalnum())


def some_text(llm: LLM) -> str:
    return llm.tokenizer.decode([some_token(llm)])


LONG = {"temperature": 3.0, "seed": 1, "min_tokens": 64, "max_tokens": 64}  # so long that tokens repeat
HOT = {"temperature": 1.5, "seed": 1}
MIROSTAT = {**HOT, "mirostat": 2, "mirostat_tau": 3.0}
FEW = {"allowed_token_ids": lambda llm: [llm.tokenizer.encode(c, add_special=False)[-1] for c in "abc"]}
DRY = {**LONG, **FEW, "dry_multiplier": 0.8, "dry_allowed_length": 1}
# For each parameter: parameters of a request, and a change that must show in its answer.
EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": ({"seed": 1}, {"temperature": 1.5}),
    "top_p": (HOT, {"top_p": 1e-9}),
    "top_k": (HOT, {"top_k": 1}),
    "min_p": (HOT, {"min_p": 1.0}),
    "repetition_penalty": (LONG, {"repetition_penalty": 3.0}),
    "presence_penalty": (LONG, {"presence_penalty": 2.0}),
    "frequency_penalty": (LONG, {"frequency_penalty": 2.0}),
    "logit_bias": ({}, {"logit_bias": lambda llm: {some_token(llm): -100}}),
    "typical_p": (HOT, {"typical_p": 1e-9}),
    "top_n_sigma": (HOT, {"top_n_sigma": 1e-9}),
    "xtc_probability": ({**HOT, "xtc_threshold": 1e-4}, {"xtc_probability": 1.0}),
    "xtc_threshold": ({**HOT, "xtc_probability": 1.0}, {"xtc_threshold": 1e-4}),
    "mirostat": ({**HOT, "mirostat_tau": 0.5}, {"mirostat": 2}),
    "mirostat_tau": (MIROSTAT, {"mirostat_tau": 0.1}),
    "mirostat_eta": (MIROSTAT, {"mirostat_eta": 1.0}),
    "dry_multiplier": ({**DRY, "dry_multiplier": 0.0}, {"dry_multiplier": 100.0}),
    "dry_base": (DRY, {"dry_base": 100.0}),
    "dry_allowed_length": (DRY, {"dry_allowed_length": 20}),
    "dry_sequence_breakers": (DRY, {"dry_sequence_breakers": ["a"]}),
    "allowed_token_ids": ({}, {"allowed_token_ids": lambda llm: [some_token(llm)]}),
    "bad_words": ({}, {"bad_words": lambda llm: [some_text(llm)]}),
    "truncate_prompt_tokens": ({}, {"truncate_prompt_tokens": 1}),
    "prompt_logprobs": ({}, {"prompt_logprobs": 0}),
    "logprobs_mode": ({**HOT, "logprobs": 2}, {"logprobs_mode": "processed"}),
    "n": ({}, {"n": 2}),
    "seed": (HOT, {"seed": 2}),
    "max_tokens": ({}, {"max_tokens": 3}),
    "min_tokens": ({}, {"min_tokens": LENGTH + 2}),
    "stop": ({}, {"stop": some_text}),
    "stop_token_ids": ({}, {"stop_token_ids": lambda llm: [some_token(llm)]}),
    "ignore_eos": ({}, {"ignore_eos": True}),
    "logprobs": ({}, {"logprobs": 2}),
    "include_stop_str_in_output": ({"stop": some_text}, {"include_stop_str_in_output": True}),
    "skip_special_tokens": ({"ignore_eos": True}, {"skip_special_tokens": False}),
    "logits_processors": ({}, {"logits_processors": lambda llm: [lambda ids, logits: -logits]}),
    "structured_outputs": ({}, {"structured_outputs": StructuredOutputsParams(regex="[a-z]{3,9}")}),
}


def test_every_parameter_is_in_the_table() -> None:  # known fault B137
    of_chats = {"thinking_budget"}  # tests/engine/test_thinking_budget.py
    assert EFFECTS.keys() | of_chats == {f.name for f in fields(SamplingParams)}


@pytest.mark.parametrize("name", EFFECTS)
def test_every_parameter_has_an_effect(ending: LLM, name: str) -> None:  # known fault B137
    before, change = ({k: v(ending) if callable(v) else v for k, v in part.items()} for part in EFFECTS[name])
    plain = whole_answer(ending, **before)
    assert whole_answer(ending, **before) == plain
    assert whole_answer(ending, **{**before, **change}) != plain
    assert_idle(ending)


def test_a_top_k_of_the_vocabulary_or_more_is_off(llm: LLM) -> None:  # known faults B01, B02
    vocab_size = llm.tokenizer.vocab_size
    answers = [answer(llm, **HOT, top_k=k).token_ids for k in (0, -1, vocab_size, vocab_size + 1, 10**7)]
    assert answers == [answer(llm, **HOT).token_ids] * 5


def test_greedy_ignores_the_filters(llm: LLM) -> None:  # known fault B07
    assert answer(llm, temperature=0, top_p=0.3, top_k=2, min_p=0.9, seed=5) == answer(llm)


def test_logprobs_do_not_depend_on_the_parameters(llm: LLM) -> None:  # known faults B14, B15
    """They are of the logits as the model gives them; the filters only choose among the tokens."""
    expected = answer(llm, logprobs=10, max_tokens=1).logprobs
    assert expected is not None
    (entry,) = expected
    values = [e.logprob for e in entry.values()]
    assert len(values) == 10
    assert values == sorted(values, reverse=True)
    assert [e.rank for e in entry.values()] == list(range(1, 11))
    for params in ({"temperature": 1e-3}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1, "top_p": 0.3}):
        assert answer(llm, **{"temperature": 2.0, **params}, logprobs=10, max_tokens=1).logprobs == expected


def test_logprobs_are_finite_and_no_more_than_one_in_sum(llm: LLM) -> None:  # known fault B17
    """Also of tokens that a filter or min_tokens took away, and where more are asked for than were left."""
    for params in ({"top_k": 2}, {"top_k": 1, "min_tokens": 6}, {"temperature": 5.0, "seed": 3}):
        choice = answer(llm, **{"temperature": 1.0, **params}, logprobs=20, max_tokens=6)
        assert choice.logprobs is not None
        assert len(choice.logprobs) == len(choice.token_ids)
        for token, entry in zip(choice.token_ids, choice.logprobs, strict=True):
            assert next(iter(entry)) == token
            assert len(entry) == (20 if entry[token].rank <= 20 else 21)
            values = [e.logprob for e in entry.values()]
            json.dumps(values, allow_nan=False)
            assert max(values) <= 0
            assert sum(np.exp(values)) <= 1 + 1e-5


@pytest.mark.parametrize("include", [False, True])
def test_text_ids_and_logprobs_are_cut_at_one_place(ending: LLM, include: bool) -> None:  # known fault B130
    full = answer(ending)
    token, text = some_token(ending), some_text(ending)
    for params in ({"stop": text}, {"stop_token_ids": [token]}):
        cut = answer(ending, **params, include_stop_str_in_output=include, logprobs=1)
        assert cut.finish_reason == "stop"
        assert cut.logprobs is not None
        assert [next(iter(entry)) for entry in cut.logprobs] == cut.token_ids
        assert ending.tokenizer.decode(cut.token_ids).startswith(cut.text)
        kept = full.text.index(text) + (len(text) if include else 0)
        assert cut.text == full.text[:kept]
        assert len(cut.token_ids) == full.token_ids.index(token) + include


def test_no_stop_of_any_kind_before_min_tokens(ending: LLM) -> None:  # known fault B102
    eos_ids = ending.tokenizer.eos_token_ids
    assert len(eos_ids) == 2
    assert answer(ending).token_ids[-1] in eos_ids
    late = answer(ending, min_tokens=LENGTH + 3, max_tokens=20)
    assert late.finish_reason == "stop"
    assert [i in eos_ids for i in late.token_ids] == [False] * (LENGTH + 3) + [True]
    token, text = some_token(ending), some_text(ending)
    for params in ({"stop_token_ids": [token]}, {"stop": text}):
        assert len(answer(ending, **params).token_ids) < 5
        assert len(answer(ending, **params, min_tokens=5).token_ids) >= 5


def test_each_row_of_a_batch_has_its_own_min_tokens(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:  # known faults B102, B122
    """The rows stay the same for many steps, and EOS is what the model wants all the time."""
    forward = llm._runner.forward

    def prefer_eos(batch: Any) -> np.ndarray:
        logits = forward(batch).copy()
        logits[:, sorted(llm.tokenizer.eos_token_ids)] = 1e4
        return logits

    monkeypatch.setattr(llm._runner, "forward", prefer_eos)
    least = [0, 1, 7, 20]
    outputs = llm.generate([PROMPT] * 4, [SamplingParams(seed=1, min_tokens=m, max_tokens=30) for m in least])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [m + 1 for m in least]


def test_nothing_left_to_draw_ends_that_request_only(llm: LLM) -> None:  # known faults B105, B112
    expected = answer(llm, max_tokens=12)
    barred = SamplingParams(min_tokens=2, stop_token_ids=range(llm.tokenizer.vocab_size))
    with pytest.raises(GenerationError, match="1 of 2 prompts failed; prompt 1: nothing is left to draw") as caught:
        llm.generate([PROMPT] * 2, [SamplingParams(temperature=0, max_tokens=12), barred])
    assert caught.value.outputs[0] is not None
    assert caught.value.outputs[0].outputs == [expected]
    assert_idle(llm)


def test_choices_of_several_prompts_come_in_order(llm: LLM) -> None:  # known fault B116
    """Prompts of both forms, more choices than the engine has slots."""
    prompts: list[Any] = ["hello", [5, 6, 7], "the quick", [9] * 20]
    params = SamplingParams(temperature=1.3, seed=4, n=3, max_tokens=9, logprobs=2)
    small = LLM(llm.path, max_num_seqs=2)
    for prompt, output in zip(prompts, small.generate(prompts, params), strict=True):
        (alone,) = llm.generate([prompt], params)
        assert output.outputs == alone.outputs
        assert output.prompt_token_ids == alone.prompt_token_ids
        assert [choice.index for choice in output.outputs] == [0, 1, 2]
        assert all(choice.logprobs and len(choice.logprobs) == len(choice.token_ids) for choice in output.outputs)


@pytest.mark.parametrize("bad", [-1, 300, 10**6, 2**70])
def test_stop_token_ids_outside_the_vocabulary_are_refused(llm: LLM, bad: int) -> None:  # known fault B41
    expected = answer(llm)
    with pytest.raises(InvalidRequestError, match=f"stop_token_ids is {bad}; .* from 0 to 299"):
        answer(llm, stop_token_ids=[bad], min_tokens=5)
    assert answer(llm) == expected
    assert_idle(llm)


@pytest.fixture(scope="module")
def recommended(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The tiny model under the name of a catalog entry that recommends temperature 0.2 and top_p 0.9."""
    entry = catalog()["smollm2-135m"]
    assert (entry.sampling.temperature, entry.sampling.top_p) == (0.2, 0.9)
    path = tmp_path_factory.mktemp("named") / entry.file
    path.write_bytes(model.read_bytes())
    return LLM(path)


@pytest.mark.parametrize(
    ("given", "effective"),
    [
        ({}, {"temperature": 0.2, "top_p": 0.9}),
        ({"temperature": 1.7}, {"temperature": 1.7, "top_p": 0.9}),
        ({"temperature": 1.7, "top_p": 1.0}, {"temperature": 1.7, "top_p": 1.0}),
        ({"temperature": 0}, {"temperature": 0, "top_p": 0.9}),
    ],
)
def test_the_model_s_recommendation_fills_what_a_request_leaves_open(
    recommended: LLM, llm: LLM, given: dict[str, float], effective: dict[str, float]
) -> None:  # known fault B125
    resolved = recommended.default_sampling_params(**given)
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (*effective.values(), 0)
    for seed in range(4):
        params = SamplingParams(**given, seed=seed)
        (expected,) = llm.generate(PROMPT, SamplingParams(**effective, seed=seed))[0].outputs
        assert recommended.generate(PROMPT, params)[0].outputs == [expected]


def test_long_prompts_are_cut_only_where_that_is_asked_for(llm: LLM) -> None:  # known fault B126
    context = llm.max_model_len
    ids = [i % 200 for i in range(context + 30)]
    text = "ab " * context
    with pytest.raises(InvalidRequestError, match=str(context)):
        llm.generate([ids], SamplingParams(max_tokens=1))
    for prompt, whole in ((ids, ids), (text, llm.tokenizer.encode(text))):
        for last, kept in ((-1, context - 1), (20, 20), (1, 1)):
            params = SamplingParams(max_tokens=1, truncate_prompt_tokens=last)
            (output,) = llm.generate([prompt], params)
            assert len(output.prompt_token_ids) == kept
            assert output.num_truncated_tokens == len(whole) - kept
            start = [whole[0]] if whole[0] == llm.tokenizer.bos_token_id else []
            assert output.prompt_token_ids == start + whole[len(whole) - kept + len(start) :]
    (output,) = llm.generate([[5, 6]], SamplingParams(max_tokens=1, truncate_prompt_tokens=20))
    assert (output.prompt_token_ids, output.num_truncated_tokens) == ([5, 6], 0)
