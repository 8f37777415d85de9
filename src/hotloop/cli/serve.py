"""`hotloop serve MODEL`: an OpenAI-compatible server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hotloop.cli import options as opt
from hotloop.server.settings import LogFormat, ServeSettings

_DEFAULTS = ServeSettings(model_names=("model",))


def command(
    model: opt.Model,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = _DEFAULTS.host,
    port: Annotated[int, typer.Option(help="0 is any free one.")] = _DEFAULTS.port,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Clients need one of these keys. May be repeated; others on this machine can see it."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys, one a line; # begins a comment line. $HOTLOOP_API_KEY is one more key.")
    ] = None,
    public_metrics: Annotated[bool, typer.Option("--public-metrics", help="/metrics needs no key.")] = False,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="What requests call the model; the first is in answers. May be repeated. Default: from MODEL."),
    ] = None,
    max_num_seqs: opt.MaxNumSeqs = 32,
    max_num_batched_tokens: opt.MaxNumBatchedTokens = 512,
    prefill_tokens_beside_decodes: opt.PrefillTokensBesideDecodes = None,
    max_model_len: opt.MaxModelLen = None,
    block_size: opt.BlockSize = 16,
    kv_cache_memory_bytes: opt.KvCacheMemoryBytes = None,
    kv_dtype: opt.KvDtype = "f16",
    enable_prefix_caching: opt.EnablePrefixCaching = True,
    speculation: opt.Speculation = "forced",
    recommended_sampling: opt.RecommendedSampling = True,
    scheduling_policy: Annotated[
        str, typer.Option(help="fcfs or priority: whose requests the engine prefers, whatever their keys.")
    ] = "fcfs",
    tool_format: Annotated[
        str | None,
        typer.Option(help="How the model writes tool calls: hermes, llama3-json, generic. Default: by its chat template."),
    ] = None,
    threads: opt.Threads = None,
    quantize: opt.Quantize = None,
    isa: opt.Isa = None,
    default_max_tokens: Annotated[
        int | None,
        typer.Option(help="Of requests that name no max_tokens. Default: in chat all the room there is, else 16."),
    ] = None,
    max_tokens_limit: Annotated[int | None, typer.Option(help="No request gets more new tokens than this.")] = None,
    max_queued_requests: Annotated[
        int, typer.Option(help="Requests that may wait for the engine; more get status 429. Every choice is one.")
    ] = _DEFAULTS.max_queued_requests,
    max_queued_tokens: Annotated[
        int, typer.Option(help="Tokens (prompts and max_tokens) that may wait; more get status 429.")
    ] = _DEFAULTS.max_queued_tokens,
    max_requests_per_key: Annotated[
        int | None, typer.Option(help="Requests of one API key that the engine has at a time; its others wait.")
    ] = None,
    max_body_bytes: Annotated[
        int, typer.Option(help="Largest body of a request; more gets status 413.")
    ] = _DEFAULTS.max_body_bytes,
    body_timeout_s: Annotated[
        float, typer.Option(help="Seconds for the body of a request to arrive; then status 408.")
    ] = _DEFAULTS.body_timeout_s,
    write_timeout_s: Annotated[
        float, typer.Option(help="A client that reads nothing for so many seconds is dropped.")
    ] = _DEFAULTS.write_timeout_s,
    drain_timeout_s: Annotated[
        float,
        typer.Option(help="Seconds after SIGTERM or Ctrl-C for accepted requests to end; a second signal ends at once."),
    ] = _DEFAULTS.drain_timeout_s,
    watchdog_s: Annotated[
        float, typer.Option(help="An engine that has work and completes no step for so many seconds is started again.")
    ] = _DEFAULTS.watchdog_s,
    log_format: Annotated[LogFormat, typer.Option(help="Format of the log on stderr.")] = _DEFAULTS.log_format,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Prompts and answers go to the log, too.")] = False,
    yes: opt.Yes = False,
) -> None:
    """Serve a model to OpenAI clients: /v1/chat/completions, /v1/completions, /v1/models and more.

    The engine runs in a process of its own; should that end, it is started again and its requests go on.
    """
    from hotloop.cli.models import require_model
    from hotloop.server.auth import load_api_keys
    from hotloop.server.logs import configure_logging
    from hotloop.server.start import run_server
    from hotloop.weights.open_model import model_name

    path = require_model(model, yes=yes)
    settings = ServeSettings(
        model_names=tuple(served_model_name or [model_name(path) if os.path.exists(os.path.expanduser(model)) else model]),
        host=host, port=port, api_keys=load_api_keys(api_key or [], api_key_file), public_metrics=public_metrics,
        default_max_tokens=default_max_tokens, max_tokens_limit=max_tokens_limit, max_queued_requests=max_queued_requests,
        max_queued_tokens=max_queued_tokens, max_requests_per_key=max_requests_per_key, max_body_bytes=max_body_bytes,
        body_timeout_s=body_timeout_s, write_timeout_s=write_timeout_s, drain_timeout_s=drain_timeout_s,
        watchdog_s=watchdog_s, log_format=log_format, log_prompts=log_prompts,
    )  # fmt: skip
    configure_logging(settings.log_format)
    engine_options = {
        "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens,
        "prefill_tokens_beside_decodes": prefill_tokens_beside_decodes, "max_model_len": max_model_len,
        "block_size": block_size, "kv_cache_memory_bytes": kv_cache_memory_bytes, "kv_dtype": kv_dtype,
        "enable_prefix_caching": enable_prefix_caching, "scheduling_policy": scheduling_policy, "threads": threads,
        "isa": isa, "speculation": speculation, "quantize": quantize, "recommended_sampling": recommended_sampling,
        "tool_format": tool_format,
    }  # fmt: skip
    run_server(path, engine_options, settings)
