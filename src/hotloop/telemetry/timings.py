"""Where a request's time goes, and the figures made from it. Field names, units and meanings: schema.toml beside this file."""

from __future__ import annotations

from hotloop.request import Timeline

# What e2e_s is the sum of.
PARTS = (
    "queued_s", "own_prefill_s", "own_decode_s", "others_prefill_s", "preempted_s", "engine_overhead_s", "recovery_s",
)  # fmt: skip


class RequestClock:
    """Adds up one request's time, step by step, so that the parts make the whole: nothing is counted twice or left out.

    All moments are seconds of one clock. ``mark_s`` is how far the request's life is accounted for.
    """

    __slots__ = (
        "arrival_s", "decode_kv_bytes", "emitted_s", "engine_overhead_s", "first_token_s", "mark_s", "num_accepted_tokens",
        "num_decode_steps", "num_draft_tokens", "others_prefill_s", "own_decode_s", "own_prefill_s", "preempted_s", "queued_s",
        "recomputes", "step",
    )  # fmt: skip

    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = self.mark_s = arrival_s
        self.first_token_s = 0.0
        self.emitted_s = 0.0  # the latest token
        self.queued_s = self.own_prefill_s = self.own_decode_s = 0.0
        self.others_prefill_s = self.preempted_s = self.engine_overhead_s = 0.0
        self.decode_kv_bytes = 0
        self.num_decode_steps = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.step = -1  # the latest step that it took part in; steps count from 0
        self.recomputes = False  # preempted, and not yet back at the token where that happened

    def add_step(
        self, step: int, start_s: float, end_s: float, forward_s: float, others_share: float, *, is_decode: bool
    ) -> None:
        """The request took part in step number ``step``, which ran from start_s to end_s.

        forward_s: of that, the model. others_share: the part of the step's tokens that others prefilled.
        """
        gap_s = start_s - self.mark_s
        if self.step < 0:
            self.queued_s += gap_s
        elif self.step == step - 1:
            self.engine_overhead_s += gap_s
        elif self.recomputes:
            self.preempted_s += gap_s
        else:
            self.others_prefill_s += gap_s  # it ran, but the step's budget went to others
        others_s = forward_s * others_share
        self.others_prefill_s += others_s
        own_s = forward_s - others_s
        if self.recomputes:
            self.preempted_s += own_s
        elif is_decode:
            self.own_decode_s += own_s
        else:
            self.own_prefill_s += own_s
        self.engine_overhead_s += end_s - start_s - forward_s
        self.mark_s = end_s
        self.step = step

    def timeline(self, num_prefix_hit_tokens: int, num_preemptions: int) -> Timeline:
        """The account up to now. Called when a step has emitted tokens of the request."""
        if not self.first_token_s:
            self.first_token_s = self.mark_s
        else:
            self.num_decode_steps += 1
        previous_s, self.emitted_s = self.emitted_s, self.mark_s
        return Timeline(
            self.arrival_s, self.first_token_s, self.mark_s, self.queued_s, self.own_prefill_s, self.own_decode_s,
            self.others_prefill_s, self.preempted_s, self.engine_overhead_s, self.decode_kv_bytes,
            num_prefix_hit_tokens, num_preemptions, previous_s, 0.0, self.num_decode_steps, self.num_draft_tokens,
            self.num_accepted_tokens,
        )  # fmt: skip


def timings(
    timeline: Timeline, num_tokens: int, weight_bytes_per_step: int, read_bandwidth_bytes_per_s: float
) -> dict[str, float | int]:
    """The ``timings`` object of an answer of ``num_tokens`` drawn tokens.

    read_bandwidth_bytes_per_s: 0 where it could not be measured.
    """
    e2e_s = timeline.last_token_s - timeline.arrival_s
    ttft_s = timeline.first_token_s - timeline.arrival_s
    decode_s = timeline.last_token_s - timeline.first_token_s
    later_tokens = max(0, num_tokens - 1)
    decode_steps = timeline.num_decode_steps
    read_bytes = weight_bytes_per_step * decode_steps + timeline.decode_kv_bytes
    read_bytes_per_s = read_bytes / decode_s if decode_s > 0 else 0.0
    return {
        "e2e_s": e2e_s,
        "ttft_s": ttft_s,
        "decode_s": decode_s,
        "tpot_s": decode_s / later_tokens if later_tokens else 0.0,
        "decode_tokens_per_s": later_tokens / decode_s if decode_s > 0 else 0.0,
        "queued_s": timeline.queued_s,
        "own_prefill_s": timeline.own_prefill_s,
        "own_decode_s": timeline.own_decode_s,
        "others_prefill_s": timeline.others_prefill_s,
        "preempted_s": timeline.preempted_s,
        "engine_overhead_s": timeline.engine_overhead_s,
        "recovery_s": timeline.recovery_s,
        "drawn_tokens": num_tokens,
        "decode_steps": decode_steps,
        "draft_tokens": timeline.num_draft_tokens,
        "accepted_tokens": timeline.num_accepted_tokens,
        "preemptions": timeline.num_preemptions,
        "weight_bytes_per_step": weight_bytes_per_step,
        "kv_bytes_per_step": round(timeline.decode_kv_bytes / decode_steps) if decode_steps else 0,
        "read_bandwidth_ceiling_bytes_per_s": read_bandwidth_bytes_per_s,
        "mbu": read_bytes_per_s / read_bandwidth_bytes_per_s if read_bandwidth_bytes_per_s else 0.0,
    }
