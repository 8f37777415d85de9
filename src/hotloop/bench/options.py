"""What all benchmarks are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.bench.timing import peak_kind
from hotloop.errors import InvalidRequestError
from hotloop.telemetry.ceilings import PeakKind
from hotloop.weights.model_file import ModelFile

Report = Callable[[str], None]  # takes one line of text for a person


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """model: as the user named it. batches: sizes, each measured. context_tokens, tokens: None for the benchmark's own
    default. runs: timed blocks between two samples of the ceiling.

    Raises: InvalidRequestError naming the option.
    """

    model: str
    batches: tuple[int, ...] = (1,)
    context_tokens: int | None = None
    tokens: int | None = None
    runs: int = 5
    threads: int | None = None
    isa: str = ""

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise InvalidRequestError("--batch takes sizes of at least 1, such as 1,4,32")
        for name, value, low in (
            ("--context", self.context_tokens, 0), ("--tokens", self.tokens, 1), ("--runs", self.runs, 1)
        ):  # fmt: skip
            if value is not None and value < low:
                raise InvalidRequestError(f"{name} is {value}; it must be at least {low}")


def model_peak_kind(model_file: ModelFile) -> PeakKind:
    """The kind of arithmetic that most of a model's weights take part in."""
    sizes: Counter[PeakKind] = Counter()
    for tensor in model_file.tensors.values():
        sizes[peak_kind(tensor.format)] += tensor.nbytes
    return sizes.most_common(1)[0][0]
