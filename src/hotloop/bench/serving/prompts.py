"""Prompts of a wanted number of tokens for a server whose tokenizer is not known."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hotloop.errors import InvalidRequestError

# One token each, alone and after a space, in the vocabularies of smollm2, qwen2.5 and gemma3.
_WORDS = (
    "above act after ago all along also animal answer ball base beat begin best big body both box business but buy came can "
    "case cent choose circle control cook cool cost country cover dark day deal develop did doctor dog down draw dream dry "
    "during early earth east effect egg end energy engine enter even ever example expect fair fall farm fast field figure "
    "fill film final fine finish floor flower fly food foreign forest full get got gray great guess had half hand heavy "
    "help her here high hill him his ice idea image industry interest iron issue join joy jump just kind king land language "
    "large late lead left less lift light line list live long low machine map market material matter mean men middle might "
    "miss moment must name need never noise nor object often oil once one our own page part past pattern people perhaps "
    "period person place plan plant port power price process program pure put quite rather reach ready real red report "
    "represent require result ride ring rose row rule run save scale science score sea seat second section send set seven "
    "ship should sign simple since sing single size skill slow small snow soft some song sort space spot stage stand start "
    "state stop story stream street sun support surface tail take test the them there these they third those three today "
    "tool top train tree trip until voice wait wall war warm watch weak wear went what while whole why wind window winter "
    "wood world yard yellow yes yet young"
)
WORDS = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, uniform from low to high."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, option: str) -> Lengths:
        """From 128 or 64-256. Raises InvalidRequestError naming the option."""
        low, dash, high = text.partition("-")
        try:
            lengths = cls(int(low), int(high if dash else low))
        except ValueError:
            raise InvalidRequestError(
                f"{option} is {text!r:.40}; give a number of tokens such as 128, or 64-256"
            ) from None
        if not 1 <= lengths.low <= lengths.high:
            raise InvalidRequestError(f"{option} is {text!r:.40}; give at least 1, and the smaller number first")
        return lengths

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def random_words(num_words: int, rng: Random) -> str:
    """Text of its own from the first word on: no two prompts share a beginning that a prefix cache could use."""
    return " ".join(rng.choices(WORDS, k=num_words))


@dataclass(frozen=True, slots=True)
class TokenCount:
    """How many tokens a prompt of random words has: ``fixed`` (template, BOS) and ``per_word``."""

    fixed: float
    per_word: float

    @classmethod
    def fit(cls, few: tuple[int, int], many: tuple[int, int]) -> TokenCount:
        """From two observations: (words, tokens)."""
        per_word = max(0.1, (many[1] - few[1]) / (many[0] - few[0]))
        return cls(few[1] - per_word * few[0], per_word)

    def words(self, num_tokens: int) -> int:
        """Words for a prompt of ``num_tokens``; at least one."""
        return max(1, round((num_tokens - self.fixed) / self.per_word))


ONE_PER_WORD = TokenCount(0.0, 1.0)
