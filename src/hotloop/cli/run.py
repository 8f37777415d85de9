"""`hotloop run MODEL "question"`: one answer, streamed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hotloop.cli import options as opt
from hotloop.cli.terminal import show_answer

if TYPE_CHECKING:
    from hotloop.engine.generation import StreamChunk
    from hotloop.engine.llm import LLM
    from hotloop.request import RequestOutput


def command(
    model: opt.Model,
    prompt: Annotated[
        str | None, typer.Argument(help="The question; `-` reads it from standard input; without it a chat opens.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Complete the text as it is, without the chat template.")] = False,
    system: opt.System = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    seed: opt.Seed = None,
    max_tokens: opt.MaxTokens = opt.DEFAULT_MAX_TOKENS,
    stop: opt.Stop = None,
    json_schema: opt.JsonSchema = None,
    regex: opt.Regex = None,
    grammar: opt.Grammar = None,
    others: opt.Others = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Then one line of figures, on stderr.")] = False,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Then the largest catalog model for this machine, on stderr.")
    ] = False,
    threads: opt.Threads = None,
    max_model_len: opt.MaxModelLen = None,
    max_num_batched_tokens: opt.MaxNumBatchedTokens = 512,
    block_size: opt.BlockSize = 16,
    kv_cache_memory_bytes: opt.KvCacheMemoryBytes = None,
    kv_dtype: opt.KvDtype = "f16",
    quantize: opt.Quantize = None,
    recommended_sampling: opt.RecommendedSampling = True,
    isa: opt.Isa = None,
    yes: opt.Yes = False,
) -> None:
    """Answer a question, or complete a text with --raw.

    The question goes through the model's chat template where the file has one.
    """
    params = opt.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, max_tokens=max_tokens, stop=stop,
        structured_outputs=opt.structure(json_schema, regex, grammar),
        others=others, as_json=as_json and prompt is not None,
    )  # fmt: skip
    text = sys.stdin.read() if prompt == "-" else prompt
    llm = opt.load(
        model, yes=yes, isa=isa, quantize=quantize, tell=stats, threads=threads, max_model_len=max_model_len, max_num_seqs=1,
        max_num_batched_tokens=max_num_batched_tokens, block_size=block_size,
        kv_cache_memory_bytes=kv_cache_memory_bytes, kv_dtype=kv_dtype, recommended_sampling=recommended_sampling,
    )  # fmt: skip
    if text is None:
        from hotloop.cli.chat import converse

        converse(llm, params, system)
        return
    if raw or not llm.has_chat_template:
        chunks = llm.stream(text, params)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        chunks = llm.stream_chat([*messages, {"role": "user", "content": text}], params)
    output = _show(chunks, quiet=as_json)
    if as_json:
        print(_json(model, output))
    if stats or suggest:
        _print_figures(llm, output, stats=stats, suggest=suggest)


def _show(chunks: Iterator[StreamChunk], *, quiet: bool) -> RequestOutput:
    """Print the answer as it comes; returns the whole."""
    output = None
    for chunk in chunks:
        if not quiet:
            show_answer(chunk.text)
        output = chunk.output
    assert output is not None
    if not quiet:
        print(flush=True)
    return output


def _json(model: str, output: RequestOutput) -> str:
    import json

    from hotloop.server.responses import vllm_logprobs

    choices: list[dict[str, object]] = []
    for c in output.outputs:
        logprobs = {} if c.logprobs is None else {"logprobs": vllm_logprobs(c.logprobs)}
        choices.append(
            {"index": c.index, "text": c.text, "token_ids": c.token_ids, "finish_reason": c.finish_reason} | logprobs
        )
    completion_tokens = sum(len(choice.token_ids) for choice in output.outputs)
    usage = {"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": completion_tokens}
    answer: dict[str, object] = {
        "model": model,
        "prompt_token_ids": output.prompt_token_ids,
        "choices": choices,
        "seed": output.seed,
        "usage": usage,
        "timings": output.timings,
    }
    if output.prompt_logprobs is not None:
        answer["prompt_logprobs"] = vllm_logprobs(output.prompt_logprobs)
    if output.num_truncated_tokens:
        usage["truncated_tokens"] = output.num_truncated_tokens
    return json.dumps(answer, allow_nan=False)


def _print_figures(llm: LLM, output: RequestOutput, *, stats: bool, suggest: bool) -> None:
    from hotloop.telemetry.ceilings import measure_read_bandwidth
    from hotloop.telemetry.suggest import suggestion

    timings = output.timings
    assert timings is not None
    # Measured now, next to the run: on a shared machine an old ceiling says little.
    ceiling = measure_read_bandwidth(llm.num_threads).read_bandwidth_bytes_per_s
    bytes_per_step = timings["weight_bytes_per_step"] + timings["kv_bytes_per_step"]
    read_bytes_per_s = bytes_per_step * timings["decode_steps"] / timings["decode_s"] if timings["decode_s"] else 0.0
    if stats:
        drafts = f"{timings['accepted_tokens']} of {timings['draft_tokens']} drafts accepted, "
        drafts = drafts if timings["draft_tokens"] else ""
        print(
            f"{len(output.prompt_token_ids)} prompt tokens, {len(output.outputs[0].token_ids)} output tokens, "
            f"TTFT {timings['ttft_s']:.3f} s, {timings['decode_tokens_per_s']:.1f} tokens/s, {drafts}"
            f"{read_bytes_per_s / 1e9:.1f} GB/s read, {read_bytes_per_s / ceiling:.0%} of this machine's "
            f"{ceiling / 1e9:.1f} GB/s; seed {output.seed}",
            file=sys.stderr,
        )
    if suggest:
        print(suggestion(ceiling, read_bytes_per_s / ceiling), file=sys.stderr)
