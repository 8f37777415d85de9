"""SamplerState and draw: penalties, biases and bans by hand, tentative tokens, rows that know nothing of each other."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import _native
from hotloop.errors import HotloopError
from hotloop.sampling.definition import edited
from hotloop.sampling.draw import Draw, Row, Sampler
from hotloop.sampling.state import SamplerState
from hotloop.sampling_params import SamplingParams

ISA = _native.usable_isas()[0]
SAMPLER = Sampler(ISA)
VOCAB = 50


def state(
    prompt: tuple[int, ...] = (1, 2, 3),
    output: tuple[int, ...] = (),
    *,
    stop: tuple[int, ...] = (),
    seed: int = 7,
    choice: int = 0,
    bad_word_ids: list[list[int]] | None = None,
    mirostat_mu: float | None = None,
    **params: Any,
) -> SamplerState:
    return SamplerState(
        SamplingParams(**params), seed=seed, choice=choice, prompt_token_ids=list(prompt), output_token_ids=output,
        mirostat_mu=mirostat_mu, stop_token_ids=stop, bad_word_ids=bad_word_ids or (), vocab_size=VOCAB,
    )  # fmt: skip


def logits_after(of: SamplerState, logits: np.ndarray) -> np.ndarray:
    return logits.copy() if of.edits is None else edited(logits, of.draw_params, of.edits)


def random_logits(seed: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def tokens(results: list[Draw | HotloopError]) -> list[int]:
    assert all(isinstance(r, Draw) for r in results), results
    return [r.token_id for r in results if isinstance(r, Draw)]


def test_presence_and_frequency_see_the_output_only() -> None:  # known faults B11, B13
    logits = random_logits(0)[0]
    fresh = state((4, 4, 4), presence_penalty=2, frequency_penalty=2)
    assert (logits_after(fresh, logits) == logits).all()
    after = logits_after(state((4, 4, 4), (5, 5, 5), frequency_penalty=0.5, presence_penalty=0.1), logits)
    assert after[5] == logits[5] - np.float32(1.6)
    assert (np.delete(after, 5) == np.delete(logits, 5)).all()


def test_repetition_sees_prompt_and_output_from_the_first_token_on() -> None:  # known fault B11
    logits = random_logits(1)[0]
    logits[4], logits[6] = 3.0, -3.0
    after = logits_after(state((4, 6, 4), (9,), repetition_penalty=1.5), logits)
    assert (after[4], after[6]) == (2.0, -4.5)  # once, however often an id occurs
    assert after[9] != logits[9]
    assert (np.delete(after, [4, 6, 9]) == np.delete(logits, [4, 6, 9])).all()


def test_order_of_bans_bias_and_penalties() -> None:
    logits = np.full(VOCAB, 1.0, np.float32)
    params = state(
        (8,), (8, 8), stop=(3,), min_tokens=3, logit_bias={8: 2, 3: 100}, repetition_penalty=2, presence_penalty=0.25,
        frequency_penalty=0.125,
    )  # fmt: skip
    after = logits_after(params, logits)
    assert after[8] == (1 + 2) / 2 - 2 * 0.125 - 0.25
    assert after[3] == -np.inf  # no bias lifts a ban
    params.push(0)
    assert logits_after(params, logits)[3] == 101  # min_tokens is over


def test_extreme_penalties_stay_finite() -> None:
    logits = np.array([[5.0, -np.inf, -5.0, 0.0]], np.float32)
    rows = [
        Row(state((0, 1, 2, 3), repetition_penalty=r, temperature=0), 4) for r in (1e-46, 1e-30, 1e30, 1e300)
    ]
    assert tokens(SAMPLER.draw(logits, rows, logits_rows=[0] * 4)) == [0, 0, 0, 0]


def test_state_is_a_fold_over_the_output() -> None:
    params = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "min_tokens": 4}
    pushed = state(stop=(9,), **params)
    for token_id in (7, 2, 7):
        pushed.push(token_id)
    resumed = state(output=(7, 2, 7), stop=(9,), **params)
    logits = random_logits(2)[0]
    assert (logits_after(pushed, logits) == logits_after(resumed, logits)).all()
    assert pushed.position == resumed.position == 6


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=90), st.lists(st.lists(st.integers(0, 9), max_size=80), max_size=4))
def test_rollback_leaves_no_trace(output: list[int], tentative: list[list[int]]) -> None:
    params = {
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 40, "max_tokens": None, "dry_multiplier": 0.8,
    }  # fmt: skip
    touched, plain = state(output=tuple(output), stop=(9,), **params), state(output=tuple(output), stop=(9,), **params)
    for tokens_ in tentative:
        for token_id in tokens_:
            touched.push(token_id)
        touched.rollback(len(tokens_))
    logits = random_logits(3)[0]
    assert (logits_after(touched, logits) == logits_after(plain, logits)).all()
    assert touched.position == plain.position


def test_rows_with_drafts_draw_what_plain_steps_draw() -> None:
    params = {
        "repetition_penalty": 1.3, "frequency_penalty": 1.0, "min_tokens": 4, "temperature": 0.8, "logprobs": 1,
        "dry_multiplier": 2.0, "dry_allowed_length": 1, "bad_word_ids": [[5, 6], [7, 8]], "xtc_probability": 0.5,
    }  # fmt: skip
    logits = random_logits(4, rows=6)
    plain = state(stop=(9,), **params)
    expected: list[Draw | HotloopError] = []
    for step in range(6):
        expected += SAMPLER.draw(logits[step : step + 1], [Row(plain, 3 + step)])
        plain.push(tokens(expected)[-1])
    drafts = tuple(tokens(expected)[:5])
    verifying = state(stop=(9,), **params)
    rows = [Row(verifying, 3 + k, drafts[:k]) for k in range(6)]
    assert SAMPLER.draw(logits, rows) == expected
    assert not verifying.output_token_ids


def test_a_row_without_drafts_sees_none_of_those_of_the_rows_after_it() -> None:
    """Not even where there is no more room for the counts of the drafts."""
    logits = np.zeros((3, 200), np.float32)
    logits[:, 0] = 1.5
    for num_seen in range(60, 70):
        one = SamplerState(
            SamplingParams(temperature=0, frequency_penalty=1.0), seed=7, prompt_token_ids=[1],
            output_token_ids=range(num_seen), vocab_size=200,
        )  # fmt: skip
        rows = [Row(one, one.position + k, (0, 199)[:k]) for k in range(3)]
        drawn = SAMPLER.draw(logits, rows)
        assert tokens(drawn) == [0, num_seen, num_seen]
        assert SAMPLER.draw(logits[:1], rows[:1]) == drawn[:1]


def test_a_row_does_not_depend_on_the_others() -> None:  # known faults B01, B122
    states = [
        state(temperature=0), state(top_k=5, seed=1), state((3, 3), (4,), repetition_penalty=1.5, logprobs=3),
        state(stop=(2,), min_tokens=5, logit_bias={2: 100}, top_p=0.5), state(min_p=0.1, temperature=2, choice=3),
    ]  # fmt: skip
    logits = random_logits(5, rows=len(states))
    rows = [Row(s, s.position) for s in states]
    together = SAMPLER.draw(logits, rows)
    assert together == [SAMPLER.draw(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    order = [3, 1, 4, 0, 2]
    assert SAMPLER.draw(logits, [rows[i] for i in order], logits_rows=order) == [together[i] for i in order]


def test_a_broken_row_is_only_its_own_error() -> None:  # known fault B105
    logits = random_logits(6, rows=5)
    logits[1, 3], logits[2, 4], logits[3] = np.nan, np.inf, -np.inf
    results = SAMPLER.draw(logits, [Row(state(temperature=0), 3)] * 5)
    assert [isinstance(r, Draw) for r in results] == [True, False, False, False, True]
    assert [str(r) for r in results[1:4]] == [
        f"the model's logits at position 3 have no finite maximum (token {token}): its file is damaged, which `hotloop check` "
        f"tells, or its keys or values are too large for the KV cache, and kv_dtype f32 holds them"
        for token in ("3: nan", "4: inf", "0: -inf")
    ]


def test_bad_words_are_not_finished() -> None:
    words = {"bad_word_ids": [[5], [7, 8], [8, 8, 9]]}
    logits = random_logits(9)[0]

    def banned_after(*output: int) -> set[int]:
        return {int(i) for i in np.flatnonzero(logits_after(state(output=output, **words), logits) == -np.inf)}

    assert banned_after() == {5}
    assert banned_after(7) == {5, 8}
    assert banned_after(8) == banned_after(7, 3) == {5}
    assert banned_after(1, 7, 8, 8) == {5, 9}
    fresh = state((7,), **words)
    assert (logits_after(fresh, logits) == -np.inf).sum() == 1  # the prompt is no part of a word
    for token_id in (7, 8):
        fresh.push(token_id)
    fresh.rollback(1)
    assert logits_after(fresh, logits)[8] == -np.inf


def test_allowed_token_ids_are_a_mask_beside_that_of_the_row() -> None:
    logits = random_logits(10)
    allowing = state(allowed_token_ids=[3, 40, 41], logit_bias={7: 100}, temperature=0)
    assert tokens(SAMPLER.draw(logits, [Row(allowing, 3)])) == [[3, 40, 41][int(logits[0, [3, 40, 41]].argmax())]]
    assert tokens(SAMPLER.draw(logits, [Row(allowing, 3, mask=mask_of(5, 40))])) == [40]
    [error] = SAMPLER.draw(logits, [Row(allowing, 3, mask=mask_of(5))])
    assert isinstance(error, HotloopError)
    [error] = SAMPLER.draw(logits, [Row(state(allowed_token_ids=[5], bad_word_ids=[[5]]), 3)])
    assert "no token that is allowed here has a finite logit and is no bad word" in str(error)
    [error] = SAMPLER.draw(logits[:, :2].copy(), [Row(state((1,), bad_word_ids=[[0], [1]]), 1)])
    assert "bad_words and the penalties rule out every token" in str(error)


def test_processed_logprobs_are_of_what_was_drawn_from() -> None:
    logits = random_logits(11)
    for params in ({"top_k": 3}, {"top_p": 0.5}, {}, {"temperature": 0.0}, {"mirostat": 2, "mirostat_tau": 1.0}):
        drawing = state(**{"temperature": 0.5, **params}, logit_bias={5: -100}, logprobs=20, logprobs_mode="processed")
        [result] = SAMPLER.draw(logits, [Row(drawing, 3)])
        assert isinstance(result, Draw)
        assert result.logprobs is not None
        assert result.token_id in [i for i, _ in result.logprobs.top]
        assert 5 not in [i for i, _ in result.logprobs.top][:19]
        if params in ({"top_k": 3}, {"top_p": 0.5}):
            assert np.exp([p for _, p in result.logprobs.top]).sum() == pytest.approx(1, abs=1e-5)
        if params == {"top_k": 3}:
            best = np.sort(np.delete(logits[0], 5))[-3:] / 0.5
            exact = best - np.log(np.exp(best).sum())
            assert [p for _, p in result.logprobs.top] == pytest.approx(exact[::-1], abs=1e-5)
        assert result.logprobs.rank == 1 + [i for i, _ in result.logprobs.top].index(result.token_id)


def test_mirostat_s_mu_travels_with_the_tokens() -> None:
    params = {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.5}
    logits = random_logits(12, rows=6)
    running = state(**params)
    seen = []
    for step in range(6):
        [result] = SAMPLER.draw(logits[step : step + 1], [Row(running, running.position)])
        assert isinstance(result, Draw)
        seen.append((result.token_id, running.mirostat_mu))
        running.push(result.token_id, result.mirostat_mu)
    assert seen[0][1] == 4.0
    assert len({mu for _, mu in seen}) == 6
    output = [token_id for token_id, _ in seen]
    resumed = state(output=tuple(output[:4]), mirostat_mu=seen[4][1], **params)
    assert tokens(SAMPLER.draw(logits[4:5], [Row(resumed, resumed.position)])) == output[4:5]
    [greedy] = SAMPLER.draw(logits[:1], [Row(state(mirostat=2, temperature=0, mirostat_mu=1.5), 3)])
    assert isinstance(greedy, Draw)
    assert greedy.mirostat_mu == 1.5


def test_nothing_left_to_draw_is_an_error() -> None:
    [result] = SAMPLER.draw(np.zeros((1, 2), np.float32), [Row(state(min_tokens=1, stop=(0, 1)), 3)])
    assert isinstance(result, HotloopError)
    assert "position 3" in str(result)
    assert "2 stop tokens" in str(result)


def mask_of(*ids: int) -> np.ndarray:
    words = np.zeros((VOCAB + 31) // 32, np.uint32)
    for token_id in ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def test_a_mask_comes_before_everything_and_wins_over_min_tokens() -> None:
    logits = random_logits(8)
    biased = state(temperature=0, logit_bias={7: 100}, stop=(3,), min_tokens=2)
    row = Row(biased, 3, mask=mask_of(3, 40, 49))
    [result] = SAMPLER.draw(logits, [row])
    assert tokens([result])[0] == (40 if logits[0, 40] > logits[0, 49] else 49)  # neither biased 7 nor barred 3
    assert tokens(SAMPLER.draw(logits, [Row(biased, 3, mask=mask_of(3))])) == [3]  # all that the structure allows here
    [error] = SAMPLER.draw(logits, [Row(biased, 3, mask=mask_of())])
    assert isinstance(error, HotloopError)
    assert "nothing is left to draw at position 3: no token that is allowed here" in str(error)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_raw(temperature: float) -> None:  # known fault B14
    logits = random_logits(7)
    edited_state = state((3,), temperature=temperature, logit_bias={5: 100}, logprobs=4, top_k=2)
    plain_state = state((3,), temperature=temperature, logprobs=4)
    [edited_draw, plain_draw] = SAMPLER.draw(logits, [Row(edited_state, 1), Row(plain_state, 1)], logits_rows=[0, 0])
    assert isinstance(edited_draw, Draw)
    assert isinstance(plain_draw, Draw)
    assert edited_draw.token_id == 5
    assert edited_draw.logprobs is not None
    assert plain_draw.logprobs is not None
    assert edited_draw.logprobs.top == plain_draw.logprobs.top
    exact = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    assert edited_draw.logprobs.logprob == pytest.approx(exact[5], abs=1e-5)
