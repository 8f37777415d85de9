"""Minimax coefficients of csrc/kernels/math.inl, by the Remez exchange in 40 digits. Needs mpmath.

Run: python tools/fit_polynomials.py
Prints, per function, the weighted maximal error and the coefficients from the constant up.
"""

from collections.abc import Callable
from itertools import pairwise

import mpmath as m

m.mp.dps = 40
Function = Callable[[m.mpf], m.mpf]
_GRID = 600


def remez(
    f: Function, weight: Function, low: m.mpf, high: m.mpf, degree: int
) -> tuple[list[m.mpf], m.mpf]:
    """Coefficients of the polynomial p with the least max |weight (p - f)| over [low, high]; that maximum."""
    n = degree + 2
    points = [(low + high) / 2 - (high - low) / 2 * m.cos(m.pi * i / (n - 1)) for i in range(n)]
    grid = [low + (high - low) * k / _GRID for k in range(_GRID + 1)]
    for _ in range(30):
        system = m.matrix(n, n)
        for i, x in enumerate(points):
            for j in range(degree + 1):
                system[i, j] = x**j
            system[i, degree + 1] = (-1) ** i / weight(x)
        solution = m.lu_solve(system, m.matrix([f(x) for x in points]))
        coefficients = [solution[j] for j in range(degree + 1)]
        errors = [weight(x) * (m.polyval(coefficients[::-1], x) - f(x)) for x in grid]
        worst = max(abs(e) for e in errors)
        if worst < abs(solution[degree + 1]) * 1.0005:
            break
        points = _extrema(grid, errors, n) or points
    return coefficients, worst


def _extrema(grid: list[m.mpf], errors: list[m.mpf], n: int) -> list[m.mpf]:
    """The largest error between sign changes, n of them; empty if there are fewer."""
    starts = [0, *(k for k in range(1, len(grid)) if errors[k] * errors[k - 1] < 0), len(grid)]
    found = [max(range(a, b), key=lambda k: abs(errors[k])) for a, b in pairwise(starts)]
    while len(found) > n:
        found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
    return [grid[k] for k in found] if len(found) == n else []


def _series(f: Function, at_zero: m.mpf) -> Function:
    return lambda x: f(x) if abs(x) > 1e-9 else at_zero


TINY = m.mpf(10) ** -10
FITS: dict[str, tuple[Function, Function, m.mpf, m.mpf, int]] = {
    # e^r = 1 + r + r^2 q(r)
    "exp: q": (
        _series(lambda r: (m.exp(r) - 1 - r) / r**2, m.mpf(1) / 2),
        lambda r: (r * r + TINY) / m.exp(r),
        -m.log(2) / 2 * m.mpf("1.0005"),
        m.log(2) / 2 * m.mpf("1.0005"),
        4,
    ),
    # log(1 + f) = f - f^2 / 2 + f^3 P(f)
    "log: P": (
        _series(lambda f: (m.log(1 + f) - f + f * f / 2) / f**3, m.mpf(1) / 3),
        lambda f: abs(f**3 / m.log(1 + f)) + TINY if f else TINY,
        (m.sqrt(m.mpf(1) / 2) - 1) * m.mpf("1.001"),
        (m.sqrt(2) - 1) * m.mpf("1.001"),
        8,
    ),
    # tanh(x) = x + x^3 P(x^2)
    "tanh: P": (
        _series(lambda z: (m.tanh(m.sqrt(z)) / m.sqrt(z) - 1) / z, -m.mpf(1) / 3),
        lambda z: z * m.sqrt(z) / m.tanh(m.sqrt(z)) + TINY if z else TINY,
        m.mpf(0),
        m.mpf("0.625") ** 2,
        4,
    ),
}

if __name__ == "__main__":
    for name, (f, weight, low, high, degree) in FITS.items():
        coefficients, error = remez(f, weight, low, high, degree)
        print(name, "error", m.nstr(error, 4), [m.nstr(c, 10) for c in coefficients])
