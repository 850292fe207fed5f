"""What is predicted of loops: which tilings are tried follows from it, and of copies, which one is run."""

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.loops.tilings import tilings
from einops_fast.backends.triton.contraction.problems import Reduction
from einops_fast.backends.triton.device.tiling import Axis

ON = gpu_ceilings("H200")
ROWS = 264066


def fastest(free: Axis, summed: Axis, operands: int) -> tuple[float, ReductionTiling]:
    return tilings(Reduction(operands, (free,), (summed,)), "float16", ON)[0]


def test_lanes_without_an_element_take_as_long_as_others() -> None:
    """Of rows of 33 elements, a tile of 64 leaves half of each warp idle."""
    _, odd = fastest(Axis(ROWS, (33, 33, 1)), Axis(33, (1, 1, 0)), 2)
    assert odd.summed.block < 33


def test_odd_rows_take_longer_than_others_of_as_many_bytes() -> None:
    """Elements are loaded one by one."""
    odd, _ = fastest(Axis(ROWS, (65, 65, 1)), Axis(65, (1, 1, 0)), 2)
    even, _ = fastest(Axis(ROWS, (64, 64, 1)), Axis(64, (1, 1, 0)), 2)
    assert odd > 1.1 * even


def test_elements_of_one_sector_are_read_once() -> None:
    """A diagonal of blocks of 4 by 4 takes no more sectors than one row of each."""
    diagonal, _ = fastest(Axis(1200000, (16, 1)), Axis(4, (5, 0)), 1)
    row, _ = fastest(Axis(1200000, (16, 1)), Axis(4, (1, 0)), 1)
    apart, _ = fastest(Axis(1200000, (256, 1)), Axis(4, (64, 0)), 1)
    assert diagonal < 1.5 * row
    assert diagonal < apart / 1.5
