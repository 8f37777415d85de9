"""Where a request's time and traffic go, step by step."""

from typing import Any

from fakes import WITH_WINDOW, make_request
from hotloop.engine.accounts import Accounts, Live
from hotloop.kv_cache.layout import KVLayout
from hotloop.request import Request, RequestId, Timeline
from hotloop.scheduler.output import ScheduledRequest, SchedulerOutput
from hotloop.telemetry.timings import PARTS, RequestClock

LAYOUT = KVLayout(WITH_WINDOW, 4, "f16")


class Story:
    """Requests that arrived at 0 s, and the steps that they take part in."""

    def __init__(self, *requests: Request) -> None:
        self.lives = {request.request_id: Live(request, RequestClock(0.0)) for request in requests}
        self._accounts = Accounts(LAYOUT)

    def step(
        self, number: int, start_s: float, end_s: float, forward_s: float, *scheduled: ScheduledRequest, **more: Any
    ) -> tuple[int, int]:
        num_drafts = sum(s.num_draft_tokens for s in scheduled)
        output = SchedulerOutput(scheduled, more.get("forks", {}), (), (), (), num_drafts)
        return self._accounts.add_step(number, output, self.lives, start_s, end_s, forward_s)

    def emit(self, request: Request) -> Timeline:
        return self.lives[request.request_id].clock.timeline(0, 0)


def parts_of(timeline: Timeline) -> dict[str, float]:
    """Those that are not 0, which add up."""
    parts = {part: getattr(timeline, part) for part in PARTS}
    assert sum(parts.values()) == timeline.last_token_s - timeline.arrival_s
    return {part: seconds for part, seconds in parts.items() if seconds}


def test_every_second_of_a_request_has_its_place() -> None:
    a, b = make_request("a", [1] * 10), make_request("b", [1] * 90)
    story = Story(a, b)
    story.step(1, 2, 4, 1, ScheduledRequest(a, 0, 6, False), ScheduledRequest(b, 0, 2, False))
    story.step(2, 4, 5, 1, ScheduledRequest(b, 2, 8, False))  # no room for a
    story.step(3, 5, 6, 0.5, ScheduledRequest(a, 6, 4, True))
    expected = {"queued_s": 2.0, "own_prefill_s": 1.25, "others_prefill_s": 1.25, "engine_overhead_s": 1.5}
    assert parts_of(story.emit(a)) == expected
    story.step(4, 6.5, 7.5, 0.5, ScheduledRequest(a, 10, 1, True), ScheduledRequest(b, 10, 3, False))
    expected |= {"own_decode_s": 0.125, "others_prefill_s": 1.625, "engine_overhead_s": 2.5}
    assert parts_of(story.emit(a)) == expected
    story.lives[a.request_id].clock.recomputes = True  # preempted
    story.step(6, 9, 10, 1, ScheduledRequest(a, 0, 8, False))
    story.step(7, 10, 11, 1, ScheduledRequest(a, 8, 4, True))
    expected["preempted_s"] = 3.5
    assert parts_of(story.emit(a)) == expected
    story.step(8, 11, 12, 1, ScheduledRequest(a, 12, 1, True))  # it is back
    expected["own_decode_s"] = 1.125
    assert parts_of(story.emit(a)) == expected


def test_a_choice_that_forks_off_prefilled_as_its_parent_did() -> None:
    a, child = make_request("a", [1] * 10), make_request("a/1", [1] * 10)
    story = Story(a, child)
    story.step(0, 1, 2, 0.5, ScheduledRequest(a, 0, 10, True), forks={RequestId("a"): (child,)})
    assert parts_of(story.emit(child)) == parts_of(story.emit(a))
    assert parts_of(story.emit(child)) == {"queued_s": 1, "own_prefill_s": 0.5, "engine_overhead_s": 0.5}


def test_drafts_are_neither_decodes_nor_prefill() -> None:
    """They read what the last of them sees, and with a window what the first of them sees besides."""
    a, b = make_request("a", [1] * 30), make_request("b", [1] * 90)
    story = Story(a, b)
    story.step(0, 0, 1, 1, ScheduledRequest(a, 0, 30, True))
    story.emit(a)
    windowed, full = LAYOUT.token_bytes(0), LAYOUT.token_bytes(1)
    counts = story.step(
        1, 1, 2, 1, ScheduledRequest(a, 30, 4, True, num_draft_tokens=3), ScheduledRequest(b, 0, 4, False)
    )
    assert counts == (1, full * 34 + windowed * (10 + 3))
    timeline = story.emit(a)
    assert timeline.decode_kv_bytes == counts[1]
    assert parts_of(timeline) == {"own_prefill_s": 1, "own_decode_s": 0.5, "others_prefill_s": 0.5}
