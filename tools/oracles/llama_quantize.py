"""Quantize a GGUF file with llama.cpp's quantizer, without an importance matrix.

Runs in the environment that has `llama-cpp-python` (docs/oracles.md); called by quantizer_quality.py.

    python tools/oracles/llama_quantize.py SOURCE.gguf OUT.gguf FILE_TYPE [--greedy IDS.json]

FILE_TYPE: a number of `general.file_type`. With --greedy nothing is quantized: OUT.gguf is loaded, and the 32 greedy tokens
after the ids go to standard output as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import llama_cpp
from llama_cpp_oracle import greedy, load

NUM_GREEDY_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("file_type", type=int)
    parser.add_argument("--greedy", type=Path)
    args = parser.parse_args()
    if args.greedy is not None:
        ids = json.loads(args.greedy.read_text())
        llm = load(args.out, context=len(ids) + NUM_GREEDY_TOKENS + 8, all_logits=False)
        print(json.dumps(greedy(llm, ids, NUM_GREEDY_TOKENS)))
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = args.file_type
    params.nthread = 2
    sys.exit(llama_cpp.llama_model_quantize(str(args.source).encode(), str(args.out).encode(), params))


if __name__ == "__main__":
    main()
