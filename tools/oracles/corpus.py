"""The texts every oracle is run on: a long one for perplexity, twenty prompts, a mixed one for divergences.

The long text is an excerpt of Isaac Newton's Opticks (fourth edition, 1730; public domain), with line breaks
inside paragraphs, italics marks and figures removed. It is committed; to make it again from the copy that the
Go source distribution carries (src/testdata in Debian's golang-1.19-src):

    python tools/oracles/corpus.py Isaac.Newton-Opticks.txt
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DATA = Path(__file__).parent / "data"
LONG_TEXT = DATA / "opticks.txt"
FIRST_LINE = "PART I._"  # the treatise proper, past title page and advertisements
EXCERPT_CHARS = 90_000
LONG_PROMPT_CHARS = 3_200  # more tokens than gemma3's window of 512


def excerpt(source: str) -> str:
    """The committed excerpt of the original text: whole paragraphs, at most EXCERPT_CHARS characters."""
    body = source[source.index(FIRST_LINE) + len(FIRST_LINE) :]
    paragraphs = [" ".join(part.split()) for part in body.replace("_", "").split("\n\n")]
    kept: list[str] = []
    room = EXCERPT_CHARS
    for paragraph in paragraphs:
        if not paragraph or re.match(r"\[(Illustration|Footnote)", paragraph):
            continue
        room -= len(paragraph) + 2
        if room < 0:
            break
        kept.append(paragraph)
    return "\n\n".join(kept) + "\n"


def long_text() -> str:
    """English prose, at least 16,384 tokens under every tokenizer tested."""
    return LONG_TEXT.read_text(encoding="utf-8")


def prompts() -> list[str]:
    """Twenty prompts: questions, code, lists, several languages, and one longer than a sliding window."""
    short: list[str] = json.loads((DATA / "prompts.json").read_text(encoding="utf-8"))
    return [*short, long_text()[:LONG_PROMPT_CHARS].rstrip()]


def mixed_text() -> str:
    """The short prompts, then prose: what the divergence between two sets of logits is measured on."""
    return "\n\n".join([*prompts()[:-1], long_text()[LONG_PROMPT_CHARS:]])


if __name__ == "__main__":
    LONG_TEXT.write_text(excerpt(Path(sys.argv[1]).read_text(encoding="utf-8")), encoding="utf-8")
