"""Answers of a form with forced tokens as drafts and without, interleaved; and what the drafts cost plain requests beside them.

python benchmarks/engine/speculation.py MODEL [--batch 1,8] [--rounds 5] [--tokens 160]

The form is JSON with long names of properties and enumerated values: about a quarter of its tokens are forced. Plain
requests of the same number, without a form, run beside the formed ones in a second comparison.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace

from hotloop import LLM, SamplingParams, StructuredOutputsParams
from hotloop.telemetry.ceilings import measure_read_bandwidth

FORM = StructuredOutputsParams(
    json={
        "type": "object", "additionalProperties": False,
        "required": ["full_name", "favourite_colour", "years_of_experience", "programming_languages", "remarks"],
        "properties": {
            "full_name": {"type": "string", "maxLength": 24},
            "favourite_colour": {"enum": ["red", "green", "ultramarine blue"]},
            "years_of_experience": {"type": "integer", "minimum": 0, "maximum": 60},
            "programming_languages": {"type": "array", "items": {"enum": ["python", "java", "haskell"]}, "maxItems": 4},
            "remarks": {"type": "string", "maxLength": 120},
        },
    }
)  # fmt: skip
PROMPT = "Describe a programmer as JSON:\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160, help="at most so many of each answer")
    args = parser.parse_args()

    beside = {"max_model_len": 1024, "prefill_tokens_beside_decodes": 16}
    engines = {name: LLM(args.model, speculation=name, **beside) for name in ("none", "forced")}
    ceiling = measure_read_bandwidth(engines["none"].num_threads).read_bandwidth_bytes_per_s
    print(f"ceiling: {ceiling / 1e9:.1f} GB/s; {engines['none'].num_threads} threads, kernels {engines['none'].isa}")
    rows = []
    for batch in args.batch:
        formed = [
            SamplingParams(temperature=0.7, seed=i, max_tokens=args.tokens, structured_outputs=FORM) for i in range(batch)
        ]
        plain = [replace(one, structured_outputs=None, ignore_eos=True) for one in formed]
        for kind, params in (("formed", formed), ("formed and plain", formed + plain)):
            rows.append(compare(engines, kind, params, batch, args.rounds))
    print(
        json.dumps(
            {"bench": "speculation", "model": args.model, "read_bandwidth_ceiling_bytes_per_s": ceiling, "rows": rows}
        )
    )


def compare(
    engines: dict[str, LLM], kind: str, params: list[SamplingParams], num_formed: int, rounds: int
) -> dict[str, object]:
    """The same requests in both engines, in turns."""
    answers: dict[str, list[list[int]]] = {}
    wall_s: dict[str, list[float]] = {name: [] for name in engines}
    tpot_s: dict[str, dict[str, list[float]]] = {name: {"formed": [], "plain": []} for name in engines}
    drafts = accepted = tokens = 0
    for turn in range(rounds + 1):  # the first is the warm-up
        for name, llm in engines.items():
            begin_s = time.perf_counter()
            outputs = llm.generate([PROMPT] * len(params), params)
            elapsed_s = time.perf_counter() - begin_s
            answers[name] = [output.outputs[0].token_ids for output in outputs]
            if not turn:
                continue
            wall_s[name].append(elapsed_s)
            for i, output in enumerate(outputs):
                assert output.timings is not None
                tpot_s[name]["formed" if i < num_formed else "plain"].append(output.timings["tpot_s"])
                if name == "forced":
                    drafts += int(output.timings["draft_tokens"])
                    accepted += int(output.timings["accepted_tokens"])
                    tokens += int(output.timings["drawn_tokens"]) if i < num_formed else 0
    assert answers["none"] == answers["forced"], "drafts must not change an answer"
    row: dict[str, object] = {
        "kind": kind, "batch": len(params), "acceptance_rate": accepted / max(1, drafts),
        "accepted_share_of_formed_tokens": accepted / max(1, tokens),
        "wall_time_ratio": statistics.median(f / n for f, n in zip(wall_s["forced"], wall_s["none"], strict=True)),
    }  # fmt: skip
    for who in ("formed", "plain"):
        if tpot_s["none"][who]:
            pairs = zip(tpot_s["forced"][who], tpot_s["none"][who], strict=True)
            row[f"{who}_tpot_ratio"] = statistics.median(f / n for f, n in pairs)
            row[f"{who}_tpot_s"] = {name: statistics.median(tpot_s[name][who]) for name in engines}
    figures = ", ".join(f"{name} {value:.3f}" for name, value in row.items() if isinstance(value, float))
    print(f"batch {len(params):<3} {kind:<17} forced against none: {figures}")
    return row


if __name__ == "__main__":
    main()
