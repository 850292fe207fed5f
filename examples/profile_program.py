"""Profile a program from outside: ``einops-fast run --profile --patch numpy -- program.py``, and do what it says.

The program is ``program`` below, which knows nothing of einops_fast. Prints the table: each equation with its calls and
time, NumPy's time beside it, who called, and that the order of axes forces a copy. A second run keeps the array as the
first one's table says: no copy is left, and the program prints the same total.
"""

import subprocess
import sys

import numpy as np


def program(order: str, size: int) -> None:
    """Score blocks of words against a table whose axes are kept in some order."""
    rng = np.random.default_rng(0)
    words, table = rng.standard_normal((300, size, 50)), rng.standard_normal((50, size, 60))
    if order == "jkl":
        table = np.ascontiguousarray(table.swapaxes(0, 1)).swapaxes(0, 1)  # The same axes, another order in memory
    total = sum(np.einsum("ijk,kjl->il", words, table).sum() for _ in range(10))
    print(f"total {total:.6f}")


def profiled(*arguments: object) -> str:
    """Run this file's program under the command; return what it and the profile print."""
    command = ["-m", "einops_fast", "run", "--profile", "--patch", "numpy", "--", __file__, *map(str, arguments)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def main(tiny: bool) -> None:
    size = 40 if tiny else 400
    for order in ("kjl", "jkl"):
        text = profiled("program", order, size)
        print(f"table kept as {order}: {'a copy' if 'forces a copy' in text else 'no copy'}")
        print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        program(sys.argv[2], int(sys.argv[3]))
    else:
        main("--tiny" in sys.argv)
