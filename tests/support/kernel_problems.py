"""Problems for the kernels that contract, and the check against float64."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
import torch
from fused_steps import fused_step
from kernel_tensors import MEMORY

from einops_fast.backends.triton.contraction.ways import Candidate


def check(equation: str, operands: Sequence[Any], candidates: Sequence[Candidate]) -> None:
    """Each way's error is at most twice that of torch in the same precision, or rounding."""
    wide = torch.promote_types(operands[0].dtype, torch.float64)
    expected = torch.einsum(equation, *(each.to(wide) for each in operands))
    scale = torch.einsum(equation, *(each.to(wide).abs() for each in operands)).clamp_min(1e-30)
    eps = torch.finfo(operands[0].dtype).eps

    def error(result: Any) -> float:
        """Root mean square over the elements, each against the sum of its terms' magnitudes."""
        return float(((result.to(wide) - expected).abs() / scale).square().mean().sqrt())

    theirs = error(torch.einsum(equation, *operands))
    read = [operands[slot] for slot in fused_step(equation, operands).reads]
    for way in candidates:
        result = way.run(MEMORY, 0)(*read)
        assert result.dtype == operands[0].dtype
        assert result.shape == expected.shape
        assert error(result) <= max(2 * theirs, eps), way.name


def problems(*cases: Any) -> Any:
    """Return a mark that gives a test the equation and the shapes of each."""
    return pytest.mark.parametrize(("equation", "shapes"), [(case[0], case[1:]) for case in cases])


MATRICES = [
    ("bnid,bnjd->bnij", (2, 3, 20, 16), (2, 3, 7, 16)),
    ("bind,bjnd->bnij", (2, 20, 3, 16), (2, 7, 3, 16)),
    ("bind,jnd->bnij", (2, 20, 3, 16), (7, 3, 16)),
    ("bind,bine->bnde", (2, 33, 3, 17), (2, 33, 3, 5)),
    ("bik,bjk->ij", (3, 9, 30), (3, 11, 30)),
    ("dbea,ec->abcd", (4, 3, 9, 12), (9, 6)),
    ("ecbfa,fd->abcde", (6, 5, 4, 6, 8), (6, 5)),
    ("dega,gfbc->abcdef", (4, 5, 6, 7), (6, 3, 4, 5)),
    ("acd,dbc->ab", (18, 10, 12), (12, 17, 10)),
    ("aebf,fdec->abcd", (8, 4, 8, 12), (12, 9, 4, 10)),
    ("aebf,dfce->abcd", (8, 4, 3, 12), (9, 12, 5, 4)),
    ("ik,kj->ij", (1, 37), (37, 41)),
    ("ik,kj->ji", (130, 3), (3, 90)),
    ("ik,kj->ij", (17, 300), (300, 2)),
    ("ijk,kj->i", (19, 6, 7), (7, 6)),
]

LOOPS = [
    ("bnid,bnid->bni", (2, 3, 40, 16), (2, 3, 40, 16)),
    ("bind,bind->bni", (2, 40, 3, 16), (2, 40, 3, 16)),
    ("bij,bij->", (4, 30, 50), (4, 30, 50)),
    ("bij,bij->b", (4, 30, 50), (4, 30, 50)),
    ("bij,bj->bij", (4, 10, 50), (4, 50)),
    ("bi,bj->bij", (4, 10), (4, 50)),
    ("bi,bij,bj->b", (4, 10), (4, 10, 31), (4, 31)),
    ("ij,j->i", (40, 103), (103,)),
    ("ij,i->j", (40, 103), (40,)),
    ("ij,ji->", (41, 30), (30, 41)),
    ("ij,ji->ij", (41, 30), (30, 41)),
    ("abc,c->ba", (50, 6, 20), (20,)),
    ("abc->b", (13, 6, 20)),
    ("ab->", (1, 1)),
    ("i->", (2500,)),
]

FACTORED = [
    ("bi,oij,bj->bo", (21, 6), (5, 6, 17), (21, 17)),
    ("bj,oij,bi->ob", (21, 17), (5, 6, 17), (21, 6)),
    ("abk,kc,ak->cab", (3, 7, 18), (18, 9), (3, 18)),
    ("nbi,nj,nijo->nbo", (2, 20, 3), (2, 17), (2, 3, 17, 6)),
    (",ij,kj->ki", (), (5, 18), (7, 18)),
    ("ij,,kj->ki", (5, 18), (), (7, 18)),
]

CHAINS = [
    ("ai,ij,jb->ab", (37, 9), (9, 17), (17, 70)),
    ("ai,ij,jk,kb->ab", (37, 9), (9, 20), (20, 5), (5, 35)),
    ("jk,kb,ai,ij->ba", (17, 5), (5, 20), (37, 9), (9, 17)),
    ("nai,ij,nbj->anb", (3, 20, 9), (9, 17), (3, 40, 17)),
    ("caif,nij,njdb->nabcdf", (3, 5, 9, 2), (2, 9, 17), (2, 17, 4, 5)),
    ("axy,yxz,bz->ba", (33, 3, 4), (4, 3, 7), (21, 7)),
    ("ai,ij,jk,kl,lb->ab", (20, 5), (5, 6), (6, 7), (7, 3), (3, 33)),
]


def sliced(array: Any) -> Any:
    wide = array.new_full([2 * size + 1 for size in array.shape], float("nan"))
    window = tuple(slice(1, None, 2) for _ in array.shape)
    wide[window] = array
    return wide[window]


def _expanded(array: Any) -> Any:
    """The array without its first axis' differences: stride 0."""
    return array[:1].expand(array.shape)


LAYOUTS: dict[str, Callable[[Any], list[Any]]] = {
    "permuted": lambda array: [
        array.permute(order).contiguous().permute([order.index(at) for at in range(array.dim())])
        for order in list(permutations(range(array.dim())))[1 :: 1 if array.dim() < 3 else 11]
    ],
    "sliced": lambda array: [sliced(array)],
    "expanded": lambda array: [_expanded(array)],
    "unaligned": lambda array: [torch.cat([array.new_zeros(1), array.flatten()])[1:].view(array.shape)],
}
