"""Count the states of a magnet: the partition function of the Ising model on a torus is one einsum.

Each spin is a tensor, each bond an axis that two spins share. Prints the order of contraction's cost beside that of the
equation as it stands, and ln Z by the network and by a sum over all states. A second temperature shows
``contract_expression``, which plans once; the energy of a bond is a derivative, by autograd.
"""

import sys
from itertools import product

import numpy as np
import torch

from einops_fast import contract_expression, explain


def equation(rows: int, columns: int) -> str:
    """Return the einsum of a torus of spins: each has an axis to its left, right, upper and lower neighbour."""
    spins = product(range(rows), range(columns))
    terms = [f"r{i}_{(j - 1) % columns} r{i}_{j} d{(i - 1) % rows}_{j} d{i}_{j}" for i, j in spins]
    return ", ".join(terms) + " ->"


def spin(beta: torch.Tensor) -> torch.Tensor:
    """Return the tensor of a spin: half of each of its bonds, which is the root of exp(beta * s * t)."""
    sum_, difference = beta.cosh().sqrt(), beta.sinh().sqrt()
    half = torch.stack([torch.stack([sum_, difference]), torch.stack([sum_, -difference])])
    return torch.einsum("sa,sb,sc,sd->abcd", half, half, half, half)


def by_states(rows: int, columns: int, beta: float) -> float:
    """Return ln Z as a sum over all states."""
    bits = np.arange(2 ** (rows * columns))[:, None] >> np.arange(rows * columns) & 1
    states = (2 * bits - 1).reshape(-1, rows, columns)
    energies = (states * (np.roll(states, 1, 1) + np.roll(states, 1, 2))).sum((1, 2))
    return float(np.log(np.exp(beta * energies.astype(float)).sum()))


def main(tiny: bool) -> None:
    rows, columns = (3, 4) if tiny else (4, 5)
    text, shapes = equation(rows, columns), [(2, 2, 2, 2)] * (rows * columns)
    plan = explain(text, *[np.ones(shape) for shape in shapes])
    print(f"{rows} x {columns} spins: {plan.flops} operations; without an order {2 ** (2 * rows * columns)} terms")
    partition = contract_expression(text, *shapes)
    for temperature in (3.0, 2.0):
        beta = torch.tensor(1 / temperature, dtype=torch.float64, requires_grad=True)
        log = partition(*[spin(beta)] * (rows * columns)).log()
        log.backward()
        exact = by_states(rows, columns, 1 / temperature)
        print(f"T = {temperature}: ln Z {log.item():.6f}, difference {abs(log.item() - exact):.1e}")
        step = (by_states(rows, columns, beta.item() + 1e-5) - by_states(rows, columns, beta.item() - 1e-5)) / 2e-5
        bonds = 2 * rows * columns
        print(f"    energy of a bond {-beta.grad.item() / bonds:.6f}, difference {abs(beta.grad.item() - step):.1e}")


if __name__ == "__main__":
    main("--tiny" in sys.argv)
