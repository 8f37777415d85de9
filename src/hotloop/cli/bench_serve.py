"""`hotloop bench serve URL`: any OpenAI endpoint under load, timed from outside."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help="Such as http://127.0.0.1:8000, with or without /v1.")],
    model: Annotated[str | None, typer.Option(help="Default: the first that the server names.")] = None,
    endpoint: Annotated[Literal["completions", "chat"], typer.Option(help="Which of the two to call.")] = "completions",
    concurrency: Annotated[int, typer.Option(help="Requests in flight; each end starts the next.")] = 16,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second arriving at random (Poisson) instead, however many are in flight."),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Measured requests. Default: 8 x concurrency.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Requests before them. Default: as many as concurrency.")] = None,
    prompt_tokens: Annotated[str, typer.Option(metavar="N|LOW-HIGH", help="Tokens of a prompt.")] = "128",
    output_tokens: Annotated[str, typer.Option(metavar="N|LOW-HIGH", help="Tokens of an answer.")] = "128",
    ttft_limit: Annotated[float | None, typer.Option(help="Seconds; goodput counts answers within.")] = None,
    tpot_limit: Annotated[float | None, typer.Option(help="Seconds; goodput counts answers within.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of prompts, lengths and arrivals; again, the server may have the prompts cached. Default: fresh."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = None,
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="More fields of every request, such as '{\"temperature\": 0.8}'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; the text goes to stderr.")] = False,
) -> None:
    """Send requests to an OpenAI endpoint and time the answers. Every prompt is random words, so none shares its beginning
    with another; answers are greedy and kept up to their length where the server can (ignore_eos or min_tokens).
    What the figures mean is printed below them. Exit status 1 if no request was answered."""
    import json

    from hotloop.bench.serving.figures import Limits
    from hotloop.bench.serving.prompts import Lengths
    from hotloop.bench.serving.serve import ServeOptions, bench_serve_blocking

    def report(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    options = ServeOptions(
        url, model=model, endpoint=endpoint, concurrency=concurrency, requests_per_s=rate, num_requests=requests,
        num_warmup=warmup, prompt_tokens=Lengths.parse(prompt_tokens, "--prompt-tokens"),
        output_tokens=Lengths.parse(output_tokens, "--output-tokens"), limits=Limits(ttft_limit, tpot_limit), seed=seed,
        timeout_s=timeout, api_key=api_key, extra=_fields(body),
    )  # fmt: skip
    result = bench_serve_blocking(options, report)
    if as_json:
        print(json.dumps(result), flush=True)
    if not result["num_completed"]:
        raise typer.Exit(1)


def _fields(body: str | None) -> dict[str, Any]:
    import json

    from hotloop.errors import InvalidRequestError

    try:
        fields = json.loads(body or "{}")
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"--body is {body!r:.80}; give a JSON object")
    return fields
