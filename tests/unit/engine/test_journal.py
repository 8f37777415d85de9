"""The journal: who is suspected, who is tried alone, and accounts that go on in the next engine."""

import math
from dataclasses import replace

import pytest

from hotloop.engine.journal import Journal, stitched
from hotloop.request import Request, RequestId, Timeline, TokenDelta
from hotloop.sampling_params import SamplingParams

NO_TIME = Timeline(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0)


def request(name: str, deadline_s: float | None = None) -> Request:
    return Request(RequestId(name), [1, 2], SamplingParams(), 0, 10, frozenset(), arrival_s=5.0, deadline_s=deadline_s)


def journal_of(names: str) -> Journal:
    journal = Journal()
    journal.add([request(name) for name in names])
    return journal


def hand_out(journal: Journal) -> str:
    return "".join(r.request_id for r in journal.hand_out(now_s=9.0))


def draw(journal: Journal, names: str, token_id: int = 7) -> str:
    return "".join(d.request_id for d in journal.take([TokenDelta(RequestId(n), (token_id,), (), None) for n in names]))


def end(journal: Journal, names: str) -> None:
    journal.take([TokenDelta(RequestId(name), (7,), (), "stop") for name in names])


def ends_with(journal: Journal, drawn: str = "") -> str:
    """An engine gets what it may have, draws for some and ends. Returns who is to blame."""
    hand_out(journal)
    draw(journal, drawn)
    return "".join(journal.engine_ended())


def test_all_go_on_in_order_of_arrival() -> None:
    journal = journal_of("ba")
    assert hand_out(journal) == "ba"
    assert hand_out(journal) == ""
    journal.add([request("c")])
    assert hand_out(journal) == "c"
    assert draw(journal, "ac") == "ac"
    assert journal.engine_ended() == []
    journal.add([request("d")])
    again = journal.hand_out(now_s=9.0)
    assert [r.request_id for r in again] == ["b", "a", "c", "d"]
    assert [r.output_token_ids for r in again] == [[], [7], [7], []]
    assert [r.arrival_s for r in again] == [9.0, 9.0, 9.0, 5.0]  # d was in no engine yet: it waits since it came


def test_two_engines_without_a_token_make_a_suspect_and_a_token_clears_it() -> None:
    journal = journal_of("abc")
    ends_with(journal, drawn="a")
    ends_with(journal, drawn="a")
    assert hand_out(journal) == "b"  # alone
    assert hand_out(journal) == ""
    draw(journal, "b")
    assert hand_out(journal) == "c"
    draw(journal, "b")
    assert hand_out(journal) == ""
    draw(journal, "c")
    assert hand_out(journal) == "a"
    ends_with(journal)
    assert hand_out(journal) == "abc"  # nobody has two strikes


def test_a_trial_ends_with_its_request() -> None:
    for leave in (end, lambda j, name: j.drop([RequestId(name)])):
        journal = journal_of("ab")
        ends_with(journal)
        ends_with(journal)
        assert hand_out(journal) == "a"
        leave(journal, "a")
        assert hand_out(journal) == "b"


def test_one_that_kills_two_engines_while_alone_is_to_blame() -> None:
    journal = journal_of("abc")
    for _ in range(2):
        assert ends_with(journal) == ""
    assert hand_out(journal) == "a"
    draw(journal, "a")
    assert ends_with(journal) == ""  # it was b's turn, but a was there too
    assert hand_out(journal) == "b"  # the worst suspect first: really alone
    assert ends_with(journal) == ""
    assert hand_out(journal) == "b"
    assert ends_with(journal) == "b"
    assert hand_out(journal) == "c"
    draw(journal, "c")
    assert hand_out(journal) == "a"
    assert len(journal) == 2


def test_a_token_between_takes_the_blame_off() -> None:
    journal = journal_of("a")
    for _ in range(20):
        assert ends_with(journal) == ""  # a strike, at most three in a row
        assert ends_with(journal) == ""
        assert ends_with(journal) == ""
        assert ends_with(journal, drawn="a") == ""


def test_only_what_the_engine_had_gets_a_strike() -> None:
    journal = journal_of("a")
    for _ in range(3):
        ends_with(journal)
    journal.add([request("b")])
    assert ends_with(journal) == "a"
    assert hand_out(journal) == "b"


def test_deltas_that_nobody_waits_for_are_dropped() -> None:
    journal = journal_of("ab")
    hand_out(journal)
    assert journal.drop([RequestId("a"), RequestId("x")]) == ["a"]
    assert draw(journal, "ab") == "b"
    journal.engine_ended()
    assert draw(journal, "b") == ""  # of the engine that is gone
    assert journal.drop([RequestId("b")]) == []
    assert len(journal) == 0


def test_deadlines_of_the_held() -> None:
    journal = Journal()
    journal.add([request("a", 8.0), request("b"), request("c", 7.0)])
    assert journal.next_deadline_s == 7.0
    assert journal.take_expired(6.9) == []
    assert journal.take_expired(7.0) == ["c"]
    hand_out(journal)
    assert journal.next_deadline_s == math.inf
    assert journal.take_expired(9.0) == []  # the engine sees to it
    assert journal.clear() == ["a", "b"]


def test_accounts_add_up_over_engines() -> None:
    journal = journal_of("a")

    def step(timeline: Timeline) -> Timeline:
        (delta,) = journal.take([TokenDelta(RequestId("a"), (7,), (), None, None, timeline)])
        assert delta.timeline is not None
        return delta.timeline

    hand_out(journal)
    first = replace_(arrival_s=5.0, first_token_s=6.0, last_token_s=6.0, queued_s=0.25, own_prefill_s=0.75)
    assert step(first) == first
    journal.engine_ended()
    ends_with(journal)  # one that drew nothing
    assert journal.hand_out(now_s=9.0)[0].arrival_s == 9.0
    second = replace_(
        arrival_s=9.0, first_token_s=11.0, last_token_s=11.0, queued_s=0.5, own_prefill_s=1.5, num_prefix_hit_tokens=16
    )
    assert step(second) == replace_(
        arrival_s=5.0, first_token_s=6.0, last_token_s=11.0, queued_s=0.75, own_prefill_s=2.25, previous_token_s=6.0,
        recovery_s=3.0, num_decode_steps=1,
    )  # fmt: skip
    third = step(second._replace(last_token_s=12.0, own_decode_s=1.0, previous_token_s=11.0))
    assert third.previous_token_s == 11.0
    parts = third.queued_s + third.own_prefill_s + third.own_decode_s + third.recovery_s
    assert parts == third.last_token_s - third.arrival_s


def replace_(**values: float) -> Timeline:
    return NO_TIME._replace(**values)


def test_the_first_token_may_come_from_any_engine() -> None:
    before = replace_(arrival_s=5.0, last_token_s=5.0)
    after = replace_(arrival_s=9.0, first_token_s=11.0, last_token_s=11.0, queued_s=2.0, num_prefix_hit_tokens=16)
    whole = stitched(before, after)
    assert (whole.first_token_s, whole.recovery_s, whole.previous_token_s) == (11.0, 4.0, 0.0)
    assert whole.num_prefix_hit_tokens == 16


def test_ids_in_use_are_a_bug_of_the_caller() -> None:
    journal = journal_of("a")
    with pytest.raises(AssertionError):
        journal.add([replace(request("a"))])


def test_what_the_output_ids_do_not_tell_goes_along() -> None:
    journal = Journal()
    journal.add([request("a")])
    journal.hand_out(0.0)
    for token_id, mu in ((7, 3.5), (8, 3.25)):
        journal.take([TokenDelta(RequestId("a"), (token_id,), (), None, mirostat_mu=mu)])
    journal.engine_ended()
    (again,) = journal.hand_out(1.0)
    assert (again.output_token_ids, again.mirostat_mu) == ([7, 8], 3.25)
