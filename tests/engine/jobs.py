"""Jobs for an engine, all together or one by one, and what its steps were like."""

from collections.abc import Sequence
from typing import Any

from engine.engines import assert_idle
from hotloop import LLM, SamplingParams, StructuredOutputsParams
from hotloop.engine.core import EngineCore
from hotloop.request import CompletionOutput
from hotloop.structured_outputs import CallForm, CallsForm, Trigger

Job = tuple[list[int], SamplingParams]

ALONE: dict[str, Any] = {"max_num_seqs": 1, "enable_prefix_caching": False, "threads": 1, "speculation": "none"}
NUM_JOBS = 32

SCHEMA = StructuredOutputsParams(
    json={
        "type": "object", "required": ["name", "tags", "n"], "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "tags": {"type": "array", "items": {"enum": ["a", "the"]}, "maxItems": 4},
            "n": {"type": "integer", "minimum": -50, "maximum": 50},
        },
    }
)  # fmt: skip
# Free text in which an "e" begins a call.
CALLS = StructuredOutputsParams(
    calls=CallsForm(
        (CallForm('{"n": ', '{"type": "integer", "minimum": 0, "maximum": 99}', "}", "n"),), (), ("</e>",), ";",
        (Trigger("e", ""),), at_start=False, must=False, many=True,
    )
)  # fmt: skip
GRAMMAR = StructuredOutputsParams(grammar='root ::= ("the " list "\\n")+\nlist ::= "(" [a-e]? list? ")"')


def params_of(i: int, max_tokens: int) -> SamplingParams:
    """Every kind of sampling, some of answers with a form, all with logprobs."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "top_k": 40},
        {"temperature": 1.2, "top_p": 0.9, "min_p": 0.01, "prompt_logprobs": 1},
        {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.5},
        {"temperature": 0, "logit_bias": {7: 3.0, 9: -5.0}, "min_tokens": 5},
        {"temperature": 1.0, "stop_token_ids": list(range(60)), "min_tokens": 3},
        {
            "temperature": 1.1, "typical_p": 0.8, "top_n_sigma": 2.0, "xtc_probability": 0.5, "xtc_threshold": 0.01,
            "logprobs_mode": "processed",
        },
        {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0, "repetition_penalty": 1.1},
        {"temperature": 0.8, "dry_multiplier": 0.8, "dry_allowed_length": 1, "allowed_token_ids": list(range(30, 50))},
        {
            "temperature": 1.3, "min_p": 0.02, "bad_words": ["a", "the"], "xtc_probability": 1.0, "xtc_threshold": 0.02,
            "dry_multiplier": 1.0,
        },
        {"temperature": 0, "dry_multiplier": 2.0, "dry_allowed_length": 1, "logprobs_mode": "processed"},
        {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5, "min_tokens": 4},
        {"temperature": 1.1, "top_p": 0.99, "structured_outputs": SCHEMA},
        {"temperature": 0.8, "frequency_penalty": 0.3, "min_tokens": 9, "structured_outputs": GRAMMAR},
        {"temperature": 1.0, "top_k": 100, "logit_bias": {ord("e"): 5.0}, "structured_outputs": CALLS},
    ]  # fmt: skip
    kind = kinds[i % len(kinds)]
    kind["min_tokens"] = min(kind.get("min_tokens", 0), max_tokens)
    return SamplingParams(**{"seed": 1000 + i, "max_tokens": max_tokens, "logprobs": 2, "ignore_eos": i % 4 > 0, **kind})


def answers(llm: LLM, jobs: Sequence[Job]) -> list[CompletionOutput]:
    """All of them together."""
    outputs = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
    assert_idle(llm)
    return [output.outputs[0] for output in outputs]


def one_by_one(llm: LLM, jobs: Sequence[Job]) -> list[CompletionOutput]:
    return [answer for job in jobs for answer in answers(llm, [job])]


class Exercised:
    """What an engine's steps were like, so that a test can say that it tested something."""

    def __init__(self, core: EngineCore) -> None:
        steps = core.steps.latest()
        assert core.steps.num_steps == len(steps), "the log has forgotten steps"
        self.largest_batch = int(steps[:, 6].max())
        self.mixed_steps = int(((steps[:, 7] > 0) & (steps[:, 8] > 0)).sum())
        self.preemptions = int(steps[:, 10].sum())
        self.prefill_tokens = int(steps[:, 7].sum())
        self.draft_tokens = int(steps[:, 11].sum())
        self.accepted_tokens = int(steps[:, 12].sum())
