"""What is predicted of loops: which tilings are tried follows from it, and of copies, which one is run."""

from fused_steps import ON

from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.loops.tilings import tilings
from einops_fast.backends.triton.contraction.problems import Reduction
from einops_fast.backends.triton.device.tiling import Axis

ROWS = 264066


def fastest(free: Axis, summed: Axis, operands: int) -> tuple[float, ReductionTiling]:
    return tilings(Reduction(operands, (free,), (summed,)), "float16", ON)[0]


def test_what_is_predicted_of_rows_and_diagonals() -> None:
    """Of rows of 33, a tile of 64 leaves half of each warp idle; odd rows are loaded one by one; sectors read once."""
    _, odd_tiling = fastest(Axis(ROWS, (33, 33, 1)), Axis(33, (1, 1, 0)), 2)
    assert odd_tiling.summed.block < 33
    odd, _ = fastest(Axis(ROWS, (65, 65, 1)), Axis(65, (1, 1, 0)), 2)
    even, _ = fastest(Axis(ROWS, (64, 64, 1)), Axis(64, (1, 1, 0)), 2)
    assert odd > 1.1 * even
    # A diagonal of blocks of 4 by 4 takes no more sectors than one row of each.
    diagonal, row, apart = (
        fastest(Axis(1200000, (step, 1)), Axis(4, (stride, 0)), 1)[0] for step, stride in ((16, 5), (16, 1), (256, 64))
    )
    assert diagonal < 1.5 * row
    assert diagonal < apart / 1.5
