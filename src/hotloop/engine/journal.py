"""Journal: the live requests of an engine that may end at any moment, and who of them is to be tried alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hotloop.request import Request, RequestId, Timeline, TokenDelta

_STRIKES_OF_A_SUSPECT = 2
_KILLS_ALONE = 2  # then it is the request's fault


@dataclass(slots=True, eq=False)
class Entry:
    """A live request. Its output_token_ids grow here, as tokens arrive.

    before: its account when the last engine that had it ended; None if none did. strikes: engines that ended before they
    drew a token of it. kills_alone: those of them that had nothing else to do.
    """

    number: int  # in order of arrival
    request: Request
    has_drawn: bool = False  # in the engine that has it now
    strikes: int = 0
    kills_alone: int = 0
    timeline: Timeline | None = None
    before: Timeline | None = None

    @property
    def is_suspect(self) -> bool:
        return self.strikes >= _STRIKES_OF_A_SUSPECT


class Journal:
    """What it takes to go on with every request in a new engine: ids, no text.

    A request is either handed out (the engine has it) or held. While there are suspects, each is tried alone until it draws a
    token or ends; everybody who is not in the engine by then waits.
    """

    def __init__(self) -> None:
        self._handed_out: dict[RequestId, Entry] = {}
        self._held: dict[RequestId, Entry] = {}
        self._num_arrivals = 0

    def __len__(self) -> int:
        return len(self._handed_out) + len(self._held)

    @property
    def num_handed_out(self) -> int:
        return len(self._handed_out)

    @property
    def next_deadline_s(self) -> float:
        """Of the requests held, infinity if none has any; the engine sees to those it has."""
        deadlines = [e.request.deadline_s for e in self._held.values() if e.request.deadline_s is not None]
        return min(deadlines, default=math.inf)

    def add(self, requests: Iterable[Request]) -> None:
        for request in requests:
            assert request.request_id not in self._handed_out
            assert request.request_id not in self._held
            self._held[request.request_id] = Entry(self._num_arrivals, request)
            self._num_arrivals += 1

    def drop(self, request_ids: Sequence[RequestId]) -> list[RequestId]:
        """Forget requests. Returns those of them that the engine has."""
        handed_out = [i for i in request_ids if self._handed_out.pop(i, None) is not None]
        for request_id in request_ids:
            self._held.pop(request_id, None)
        return handed_out

    def hand_out(self, now_s: float) -> list[Request]:
        """The requests that an engine gets now, in order of arrival; they count as handed out."""
        if not self._held:
            return []
        if any(entry.is_suspect for entry in self._handed_out.values()):
            return []
        entries = sorted(self._held.values(), key=lambda entry: entry.number)
        suspects = [entry for entry in entries if entry.is_suspect]
        if suspects:  # the worst first: it is the one that is really alone
            entries = [max(suspects, key=lambda entry: entry.strikes)]
        for entry in entries:
            del self._held[entry.request.request_id]
            self._handed_out[entry.request.request_id] = entry
        return [_as_resumed(entry, now_s) for entry in entries]

    def take(self, deltas: Sequence[TokenDelta]) -> list[TokenDelta]:
        """What a step of the engine brought, without what nobody waits for any more, and with whole accounts."""
        taken = []
        for delta in deltas:
            entry = self._handed_out.get(delta.request_id)
            if entry is None:
                continue
            if delta.token_ids:
                entry.request.output_token_ids += delta.token_ids
                entry.request.mirostat_mu = delta.mirostat_mu
                entry.has_drawn = True
                entry.strikes = entry.kills_alone = 0
            if delta.timeline is not None:
                if entry.before is not None:
                    delta = delta._replace(timeline=stitched(entry.before, delta.timeline))
                entry.timeline = delta.timeline
            if delta.finish_reason is not None or delta.error is not None:
                del self._handed_out[delta.request_id]
            taken.append(delta)
        return taken

    def engine_ended(self) -> list[RequestId]:
        """The engine is gone: all requests are held again. Returns those whose fault it is, which are forgotten."""
        is_alone = len(self._handed_out) == 1
        culprits = []
        for request_id, entry in self._handed_out.items():
            if not entry.has_drawn:
                entry.kills_alone += is_alone and entry.is_suspect
                entry.strikes += 1
            entry.has_drawn = False
            entry.before = entry.timeline or Timeline(
                arrival_s=entry.request.arrival_s, first_token_s=0.0, last_token_s=entry.request.arrival_s,
                queued_s=0.0, own_prefill_s=0.0, own_decode_s=0.0, others_prefill_s=0.0, preempted_s=0.0,
                engine_overhead_s=0.0, decode_kv_bytes=0, num_prefix_hit_tokens=0, num_preemptions=0,
            )  # fmt: skip
            if entry.kills_alone >= _KILLS_ALONE:
                culprits.append(request_id)
            else:
                self._held[request_id] = entry
        self._handed_out.clear()
        return culprits

    def take_expired(self, now_s: float) -> list[RequestId]:
        """Forget requests that are held and whose deadline has passed."""
        expired = [
            request_id
            for request_id, entry in self._held.items()
            if entry.request.deadline_s is not None and entry.request.deadline_s <= now_s
        ]
        self.drop(expired)
        return expired

    def clear(self) -> list[RequestId]:
        """Forget all requests."""
        everybody = [*self._handed_out, *self._held]
        self._handed_out.clear()
        self._held.clear()
        return everybody


def _as_resumed(entry: Entry, now_s: float) -> Request:
    """The request for an engine that starts its account now if another one was at work on it."""
    return entry.request if entry.before is None else replace(entry.request, arrival_s=now_s)


def stitched(before: Timeline, after: Timeline) -> Timeline:
    """The account of a request that one engine began and another went on with."""
    return Timeline(
        arrival_s=before.arrival_s,
        first_token_s=before.first_token_s or after.first_token_s,
        last_token_s=after.last_token_s,
        queued_s=before.queued_s + after.queued_s,
        own_prefill_s=before.own_prefill_s + after.own_prefill_s,
        own_decode_s=before.own_decode_s + after.own_decode_s,
        others_prefill_s=before.others_prefill_s + after.others_prefill_s,
        preempted_s=before.preempted_s + after.preempted_s,
        engine_overhead_s=before.engine_overhead_s + after.engine_overhead_s,
        decode_kv_bytes=before.decode_kv_bytes + after.decode_kv_bytes,
        num_prefix_hit_tokens=before.num_prefix_hit_tokens if before.first_token_s else after.num_prefix_hit_tokens,
        num_preemptions=before.num_preemptions + after.num_preemptions,
        previous_token_s=after.previous_token_s or (before.last_token_s if before.first_token_s else 0.0),
        recovery_s=before.recovery_s + (after.arrival_s - before.last_token_s),
        num_decode_steps=before.num_decode_steps + after.num_decode_steps + bool(before.first_token_s),
        num_draft_tokens=before.num_draft_tokens + after.num_draft_tokens,
        num_accepted_tokens=before.num_accepted_tokens + after.num_accepted_tokens,
    )
