"""What llama.cpp says about a model: token ids, logits, greedy continuations, perplexity.

Runs in an environment of its own that has `llama-cpp-python` (see docs/oracles.md) and writes plain files
that compare.py reads. Every task writes into RESULTS/<model file stem>/.

    python tools/oracles/llama_cpp_oracle.py RESULTS MODEL.gguf [--tasks tokens greedy perplexity logits]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import corpus
import llama_cpp
import numpy as np
import numpy.typing as npt
from gguf_model import F32, GgufModel
from metrics import negative_log_likelihoods

NUM_GREEDY_TOKENS = 64
PERPLEXITY_WINDOW = 512
NUM_PERPLEXITY_WINDOWS = 32
NUM_LOGITS_TOKENS = 512  # of each sequence that logits are compared on
LOGITS_WINDOWS = (1, 11, 21)  # of the perplexity windows, beside one sequence of mixed text
MAX_CONTEXT = 2_048
GGML_TYPE_F32 = 0
GGML_TYPE_F16 = 1

Ids = npt.NDArray[np.int64]


def load(path: Path, *, context: int, all_logits: bool, kv_type: int = GGML_TYPE_F16) -> llama_cpp.Llama:
    """A llama.cpp context on CPU, two threads, without flash attention."""
    return llama_cpp.Llama(
        str(path),
        n_ctx=context,
        n_batch=512,
        n_threads=2,
        n_threads_batch=2,
        logits_all=all_logits,
        type_k=kv_type,
        type_v=kv_type,
        verbose=False,
    )


def tokenize(llm: llama_cpp.Llama, text: str) -> list[int]:
    """Ids of raw text: no chat template, control tokens literal, BOS as the metadata says."""
    return [int(token) for token in llm.tokenize(text.encode(), add_bos=True, special=False)]


def all_logits(llm: llama_cpp.Llama, ids: Sequence[int]) -> F32:
    """Logits of every position in a fresh context, float32 [T, vocab_size]."""
    llm.reset()
    llm.eval(list(ids))
    logits: F32 = llm.scores[: len(ids)]
    return logits


def greedy(llm: llama_cpp.Llama, ids: Sequence[int], num_tokens: int) -> list[int]:
    """The next `num_tokens` most likely tokens; ties to the lowest id; end-of-text tokens do not stop it."""
    llm.reset()
    llm.eval(list(ids))
    out: list[int] = []
    while True:
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), shape=(llm.n_vocab(),))
        out.append(int(row.argmax()))
        if len(out) == num_tokens:
            return out
        llm.eval(out[-1:])


def perplexity_windows(ids: Sequence[int], bos: int | None) -> Ids:
    """Ids as [NUM_PERPLEXITY_WINDOWS, PERPLEXITY_WINDOW], each row opened by BOS if the model adds one."""
    windows = np.asarray(ids[: NUM_PERPLEXITY_WINDOWS * PERPLEXITY_WINDOW], dtype=np.int64)
    windows = windows.reshape(NUM_PERPLEXITY_WINDOWS, PERPLEXITY_WINDOW)
    if bos is not None:
        windows[:, 0] = bos
    return windows


def scored_nll(logits: F32, window: Ids) -> float:
    """Sum of -log p over the second half of a window: the tokens after its middle position, nats."""
    half = len(window) // 2
    return float(negative_log_likelihoods(logits[half:-1], window[half + 1 :]).sum())


def write_tokens(path: Path, folder: Path) -> None:
    """Ids of all texts: prompts.json, perplexity_ids.npy and logits_ids.json."""
    llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    model = GgufModel(path)
    bos = llm.token_bos() if tokenize(llm, "a")[0] == llm.token_bos() else None
    prompts = [{"prompt": text, "prompt_token_ids": tokenize(llm, text)} for text in corpus.prompts()]
    (folder / "prompts.json").write_text(json.dumps(prompts, ensure_ascii=False, indent=1))
    windows = perplexity_windows(tokenize(llm, corpus.long_text()), bos)
    np.save(folder / "perplexity_ids.npy", windows)
    # A sequence must be longer than the sliding window, or the window is never seen to slide.
    num_tokens = NUM_LOGITS_TOKENS + int(model.parameter("attention.sliding_window", 0)) // 2
    mixed = tokenize(llm, corpus.mixed_text())[:num_tokens]
    sequences = [mixed, *(windows[index, :NUM_LOGITS_TOKENS].tolist() for index in LOGITS_WINDOWS)]
    (folder / "logits_ids.json").write_text(json.dumps(sequences))


def write_greedy(path: Path, folder: Path) -> None:
    """Greedy continuations of all prompts, f16 KV: greedy.json."""
    llm = load(path, context=MAX_CONTEXT, all_logits=False)
    entries = json.loads((folder / "prompts.json").read_text())
    for entry in entries:
        entry["token_ids"] = greedy(llm, entry["prompt_token_ids"], NUM_GREEDY_TOKENS)
        entry["text"] = llm.detokenize(entry["token_ids"]).decode(errors="replace")
    (folder / "greedy.json").write_text(json.dumps(entries, ensure_ascii=False, indent=1))


def write_perplexity(path: Path, folder: Path) -> None:
    """Perplexity over perplexity_ids.npy, f16 KV, as llama-perplexity counts: ppl_llamacpp.json."""
    llm = load(path, context=PERPLEXITY_WINDOW, all_logits=True)
    windows = np.load(folder / "perplexity_ids.npy")
    per_window = [scored_nll(all_logits(llm, window.tolist()), window) for window in windows]
    num_scored = len(windows) * (PERPLEXITY_WINDOW - PERPLEXITY_WINDOW // 2 - 1)
    result = {
        "protocol": "windows of 512 tokens, each in a fresh context and opened by BOS if the model adds one; "
        "scored: tokens 257..511 of each window (255), given all before them; exp(mean nats)",
        "perplexity": float(np.exp(sum(per_window) / num_scored)),
        "num_tokens": int(windows.size),
        "num_scored_tokens": num_scored,
        "nll_nats_per_window": per_window,
        "llama_cpp_python": llama_cpp.__version__,
        "kv_dtype": "f16",
    }
    (folder / "ppl_llamacpp.json").write_text(json.dumps(result, indent=1))


def write_logits(path: Path, folder: Path) -> None:
    """Logits of all rows of logits_ids.json, one sequence after another, f32 KV: logits_llamacpp.npy."""
    sequences = json.loads((folder / "logits_ids.json").read_text())
    llm = load(path, context=max(map(len, sequences)), all_logits=True, kv_type=GGML_TYPE_F32)
    shape = (sum(map(len, sequences)), llm.n_vocab())
    out = np.lib.format.open_memmap(folder / "logits_llamacpp.npy", "w+", np.float32, shape)
    start = 0
    for ids in sequences:
        out[start : start + len(ids)] = all_logits(llm, ids)
        start += len(ids)


TASKS = {
    "tokens": write_tokens,
    "greedy": write_greedy,
    "perplexity": write_perplexity,
    "logits": write_logits,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    folder: Path = arguments.results / arguments.model.stem
    folder.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        TASKS[task](arguments.model, folder)
        print(f"{arguments.model.stem}: {task} done", flush=True)


if __name__ == "__main__":
    main()
