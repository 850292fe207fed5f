"""Compute the correlation energy of second order (MP2) within a memory limit.

The integrals (ia|jb) are products of three-index tensors, and the denominator is a sum over points in time (a Laplace
transform), so each part of the energy is one einsum of nine operands. The orbitals are made up. Prints both parts with
and without ``memory_limit``: the most memory that NumPy held, the pieces, and the difference from the plain formula.
"""

import sys
import tracemalloc

import numpy as np

from einops_fast import explain, fast_einsum

# i, j: occupied orbitals; a, b: virtual ones; p, q: auxiliary functions; t: points in time
COULOMB = "t, t i, t j, t a, t b, p i a, p j b, q i a, q j b ->"
EXCHANGE = "t, t i, t j, t a, t b, p i a, p j b, q i b, q j a ->"


def orbitals(occupied: int, virtual: int, auxiliary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return energies of occupied and of virtual orbitals, and their integrals with auxiliary functions."""
    rng = np.random.default_rng(0)
    integrals = rng.standard_normal((auxiliary, occupied, virtual)) / auxiliary
    return np.linspace(-2.0, -0.5, occupied), np.linspace(0.3, 3.0, virtual), integrals


def points_in_time(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights such that the sum of ``weight * exp(-gap * point)`` is about ``1 / gap``."""
    logarithms, step = np.linspace(-20.0, 4.0, count, retstep=True)
    return np.exp(logarithms), step * np.exp(logarithms)


def plain(low: np.ndarray, high: np.ndarray, integrals: np.ndarray) -> tuple[float, float]:
    """Return both parts by the formula as textbooks have it, which holds all integrals at once."""
    pairs = np.einsum("pia,pjb->iajb", integrals, integrals)
    gaps = low[:, None, None, None] + low[:, None] - high[:, None, None] - high
    return float((2 * pairs * pairs / gaps).sum()), float((-pairs * pairs.swapaxes(1, 3) / gaps).sum())


def measured(equation: str, *operands: np.ndarray, **options: str) -> tuple[float, float]:
    """Return the result of an einsum, and the most MB that it held once it was planned."""
    fast_einsum(equation, *operands, **options)
    tracemalloc.start()
    result = float(fast_einsum(equation, *operands, **options))
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return result, peak


def main(tiny: bool) -> None:
    low, high, integrals = orbitals(10, 40, 60) if tiny else orbitals(20, 80, 240)
    limit = "1.5 MB" if tiny else "12 MB"
    points, weights = points_in_time(80)
    decays = [np.exp(points[:, None] * energies) for energies in (low, low, -high, -high)]
    total = 0.0
    for name, equation, factor, exact in zip(
        ("Coulomb", "exchange"), (COULOMB, EXCHANGE), (-2.0, 1.0), plain(low, high, integrals), strict=True
    ):
        operands = [weights, *decays, *[integrals] * 4]
        measured(equation, *operands)  # The first call plans
        free, most = measured(equation, *operands)
        measured(equation, *operands, memory_limit=limit)
        within, less = measured(equation, *operands, memory_limit=limit)
        memory = explain(equation, *operands, memory_limit=limit).to_dict()["memory"]
        print(f"{name}: {factor * free:.8f} with {most:.2f} MB")
        difference = abs(factor * within - exact)
        print(f"    limit {limit}: {memory['pieces']} pieces, {less:.2f} MB, difference {difference:.1e}")
        total += factor * within
    print(f"energy {total:.8f}")


if __name__ == "__main__":
    main("--tiny" in sys.argv)
