"""`hotloop check`: a model's logits on this machine against the reference op set, and every kernel set against the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from hotloop import _native
from hotloop.bench.quality import CHUNK_TOKENS, measure, native_logits
from hotloop.config import ActivationDtype
from hotloop.models.reference import reference_logits
from hotloop.models.registry import Model, load_model_spec
from hotloop.models.tensors import layer_of
from hotloop.ops.kernel_set import choose_kernel_set
from hotloop.quant.formats import dequantize
from hotloop.weights.model_file import ModelFile

Floats = NDArray[np.float32]
Report = Callable[[str], None]

# Both sides compute in float32 and differ in the order of sums: 1e-6 of a logit or so, which is some 1e-10 nats. What is
# wrong (a permuted head, a scale that is off by a factor) costs 1e-2 nats and more.
MAX_FLOAT_KL_NATS = 1e-5
# Rounding to int8 is chaotic: a last bit draws another sample of the same noise, whose mean over some dozen positions
# scatters by a fifth. Twice that of the reference is far outside, and far below any error.
MAX_INT8_KL_RATIO = 2.0
# Two best tokens that are closer than this may change places.
NEAR_TIE_NATS = 0.01

FINITE_LOGITS = "finite_logits"
"""The check that is the model's alone, whatever the machine."""

# Published weights and biases stay below some thousand. A block multiplies three matrices and sums over thousands: of values
# beyond this, squares of the result may be more than float32 holds.
_LARGEST_WEIGHT = 1e5
_SCANNED_ELEMENTS = 1 << 24

_MAX_WEIGHTS = 1_500_000_000  # that the reference computes with: about 30 s on two cores
_KERNEL_SET_PRODUCTS = 2e10  # of the slowest kernel set: some ten seconds
_MAX_KERNEL_SET_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison. limit: value may be as large; of a share, as small."""

    name: str
    value: float
    limit: float
    passed: bool


@dataclass(frozen=True, slots=True)
class AbsurdWeight:
    """A value in the file that no machine computes with: infinite, no number, or so large that float32 overflows with it."""

    tensor: str
    value: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """positions, layers: how much of the text and of the model was computed, all_layers: of how many. isas: kernel sets.
    int8_kl_nats: what the rounding of activations costs this model, exact against int8 on the reference op set.
    absurd_weight: the first one; looked for where a check has failed."""

    positions: int
    layers: int
    all_layers: int
    isas: tuple[str, ...]
    int8_kl_nats: float
    checks: tuple[Check, ...]
    absurd_weight: AbsurdWeight | None

    @property
    def finite(self) -> bool:
        """Whether the model has logits at all: those of the reference are numbers."""
        return all(check.passed for check in self.checks if check.name == FINITE_LOGITS)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def check_model(
    model_file: ModelFile, token_ids: Sequence[int], *, threads: int | None = None, isa: str = "", report: Report
) -> CheckResult:
    """token_ids: [T <= 64], the text to compute, cut to the model's context. isa: "" for every kernel set of this machine, else
    this one and scalar. report: told what goes on.

    Layers are left out, from the end, where a model has so many weights that the reference would take minutes.
    Raises: ModelFileError, CapacityError, InvalidRequestError (an unusable kernel set).
    """
    assert 2 <= len(token_ids) <= CHUNK_TOKENS
    spec = load_model_spec(model_file)
    token_ids = token_ids[: spec.config.context_length]
    num_layers, num_weights = _affordable(spec, model_file)
    layers = None if num_layers == spec.config.num_layers else range(num_layers)
    asked = [isa, "scalar"] if isa else _native.usable_isas()
    isas = tuple(dict.fromkeys((choose_kernel_set(isa), *asked)))
    how_much = f"{num_layers} of {spec.config.num_layers} layers"

    def reference(activations: ActivationDtype) -> Floats:
        report(f"reference op set, {activations} activations, {len(token_ids)} tokens, {how_much}")
        logits: Floats = reference_logits(
            model_file, token_ids, activations=activations, layers=layers, keep_weights=False
        )
        return logits

    def native(activations: ActivationDtype, isa: str, ids: Sequence[int]) -> Floats:
        report(f"{isa} kernels, {activations} activations, {len(ids)} tokens, {how_much}")
        return next(
            native_logits(model_file, ids, activations=activations, layers=layers, threads=threads, isa=isa)
        ).copy()

    with np.errstate(all="ignore"):
        exact = reference("f32")
        floats = measure(token_ids, [exact], [native("f32", isas[0], token_ids)])
        rounding = float(measure(token_ids, [exact], [reference("int8")]).kl_nats.mean())
        int8 = measure(token_ids, [exact], [native("int8", isas[0], token_ids)])
        checks = [
            _share(FINITE_LOGITS, np.isfinite(exact)),
            _at_most("f32_activations_mean_kl_nats", float(floats.kl_nats.mean()), MAX_FLOAT_KL_NATS),
            _share("f32_activations_top1_agreement", floats.same_best | (_margin_nats(exact) < NEAR_TIE_NATS)),
            _at_most(
                "int8_activations_mean_kl_nats",
                float(int8.kl_nats.mean()),
                MAX_INT8_KL_RATIO * rounding + MAX_FLOAT_KL_NATS,
            ),
        ]
        few = token_ids[: max(2, min(int(_KERNEL_SET_PRODUCTS / num_weights), _MAX_KERNEL_SET_TOKENS))]
        first = native("int8", isas[0], few)
        for other in isas[1:]:
            same = native("int8", other, few).view(np.uint32) == first.view(np.uint32)
            ran = choose_kernel_set(other) == other  # and no other in its place, as it failed its own check
            checks.append(_share(f"bits_of_{isas[0]}_and_{other}", same & ran))
    absurd = None if all(check.passed for check in checks) else _absurd_weight(model_file, _used(spec, model_file, num_layers))
    return CheckResult(len(token_ids), num_layers, spec.config.num_layers, isas, rounding, tuple(checks), absurd)


def _at_most(name: str, value: float, limit: float) -> Check:
    return Check(name, value, limit, value <= limit)  # not if it is no number


def _share(name: str, holds: NDArray[np.bool_]) -> Check:
    """All must hold."""
    return Check(name, float(holds.mean()), 1.0, bool(holds.all()))


def _margin_nats(logits: Floats) -> NDArray[np.float32]:
    """Between the two best tokens of each row: float32 [T]."""
    best = np.partition(logits, -2, axis=1)[:, -2:]
    margin: NDArray[np.float32] = best[:, 1] - best[:, 0]
    return margin


def _absurd_weight(model_file: ModelFile, names: Iterable[str]) -> AbsurdWeight | None:
    for name in names:
        info = model_file.tensors[name]
        columns = info.shape[-1]
        step = max(_SCANNED_ELEMENTS // columns, 1)
        for start in range(0, info.num_rows, step):
            stop = min(start + step, info.num_rows)
            values = dequantize(info.format, model_file.read_rows(name, start, stop), (stop - start, columns)).reshape(-1)
            worst = float(values[np.abs(values).argmax()])  # the first that is no number, where there is one
            if not abs(worst) <= _LARGEST_WEIGHT:
                return AbsurdWeight(model_file.source_name(name), worst)
    return None


def _used(spec: Model, model_file: ModelFile, num_layers: int) -> Iterator[str]:
    """Tensors of the first layers, and of none."""
    for name in spec.tensor_shapes:
        if name in model_file.tensors and layer_of(name) < num_layers:
            yield name


def _affordable(spec: Model, model_file: ModelFile) -> tuple[int, int]:
    """How many layers the reference has time for, at least one, and how many weights that is."""
    sizes = {name: prod(shape) for name, shape in spec.tensor_shapes.items() if name in model_file.tensors}
    total = sum(size for name, size in sizes.items() if not name.startswith("blk."))
    for layer in range(spec.config.num_layers):
        more = sum(size for name, size in sizes.items() if name.startswith(f"blk.{layer}."))
        if layer and total + more > _MAX_WEIGHTS:
            return layer, total
        total += more
    return spec.config.num_layers, total
