"""`hotloop chat MODEL`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from hotloop.cli import options as opt
from hotloop.cli.terminal import printable, show_answer, show_dimmed

if TYPE_CHECKING:
    from hotloop.engine.llm import LLM
    from hotloop.sampling_params import SamplingParams

_HELP = "Ctrl-C stops an answer, /reset starts over, /help shows this, /exit or Ctrl-D leaves."


def command(
    model: opt.Model,
    system: opt.System = None,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    seed: opt.Seed = None,
    max_tokens: opt.MaxTokens = opt.DEFAULT_MAX_TOKENS,
    stop: opt.Stop = None,
    others: opt.Others = None,
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
    """Chat with a model. Ctrl-C stops an answer, /reset starts over, /help tells this, /exit or Ctrl-D leaves."""
    params = opt.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, max_tokens=max_tokens, stop=stop,
        others=others,
    )  # fmt: skip
    llm = opt.load(
        model, yes=yes, isa=isa, quantize=quantize, threads=threads, max_model_len=max_model_len, max_num_seqs=1,
        max_num_batched_tokens=max_num_batched_tokens, block_size=block_size,
        kv_cache_memory_bytes=kv_cache_memory_bytes, kv_dtype=kv_dtype, recommended_sampling=recommended_sampling,
    )  # fmt: skip
    converse(llm, params, system)


def converse(llm: LLM, params: SamplingParams, system: str | None) -> None:
    """Ask and answer until the input ends. Errors of one turn are shown and the turn is taken back."""
    from hotloop.errors import HotloopError, InvalidRequestError

    if not llm.has_chat_template:
        raise InvalidRequestError(f"{llm.path.name} has no chat template; use `hotloop run MODEL TEXT --raw`")
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        print(_HELP, file=sys.stderr)
    opening = [{"role": "system", "content": system}] if system else []
    messages = list(opening)
    while True:
        try:
            text = input("> " if interactive else "")
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if text.strip() in ("/exit", "/quit"):
            return
        if text.strip() == "/help":
            print(_HELP, file=sys.stderr)
            continue
        if text.strip() == "/reset":
            messages = list(opening)
            continue
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        try:
            messages.append({"role": "assistant", "content": _answer(llm, messages, params)})
        except HotloopError as error:
            messages.pop()
            print(f"hotloop: {printable(str(error))}", file=sys.stderr)


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Stream one answer and return it without its reasoning, which is shown dimmed; Ctrl-C keeps what came so far."""
    text, is_dim = "", False
    chunks = llm.stream_chat(messages, params)
    try:
        for chunk in chunks:
            for part in chunk.parts or ():
                reasons = part.kind == "reasoning"
                if reasons != is_dim:
                    print("\n\n" if is_dim else "", end="")
                    show_dimmed(reasons)
                    is_dim = reasons
                show_answer(part.text)
                text += "" if reasons else part.text
            if chunk.parts is None:
                show_answer(chunk.text)
                text += chunk.text
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    finally:
        if is_dim:
            show_dimmed(False)
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    print(flush=True)
    return text
