"""Further cases: the classes of the public ones at other extents and in other layouts.

No shape of a tile was chosen by these; that operands with odd strides may be copied was. Extents are odd, prime,
aligned to 4 or 8 elements, tiny or long; operands are also turned, expanded and sliced. Each case holds between 10 MB
(float16) and 200 MB (float32) on a GPU.
"""

from __future__ import annotations

from einops_fast.profiles.cases import CONTRACTIONS, Case
from einops_fast.profiles.contraction.model_cases import MODELS
from einops_fast.profiles.contraction.sweep_cases import SWEEP

__all__ = ["EXTRA", "FAMILIES"]

_ATTENTION: tuple[Case, ...] = (
    Case("x-qk-odd", "bind,bjnd->bnij", ((3, 1009, 11, 72), (3, 997, 11, 72))),
    Case("x-qk-decode", "bind,bjnd->bnij", ((32, 1, 32, 128), (32, 251, 32, 128))),
    Case("x-qk-grouped", "bind,bjd->bnij", ((8, 500, 8, 64), (8, 516, 64))),
    Case("x-qk-packed", "bind,bjnd->bnij", ((4, 700, 10, 64), (4, 700, 10, 64)), memory=("bi_nd", "bj_nd")),
    Case("x-pv-odd", "bnij,bjnd->bind", ((3, 9, 1021, 1023), (3, 1023, 9, 80))),
    Case("x-pv-few", "bnij,bjnd->bind", ((16, 32, 4, 512), (16, 512, 32, 128))),
    Case("x-proj-4", "bnih,nhd->bid", ((4, 12, 1028, 68), (12, 68, 1540))),
    Case("x-linattn-deep", "bind,bine->bnde", ((2, 32768, 4, 48), (2, 32768, 4, 56))),
    Case("x-ellipsis", "abid,abjd->abij", ((12, 10, 400, 40), (12, 10, 396, 40)), spelled="...id,...jd->...ij"),
)

_MATRICES: tuple[Case, ...] = (
    Case("x-deep", "ki,kj->ij", ((300007, 24), (300007, 40))),
    Case("x-rows-8", "ik,kj->ij", ((8, 5000), (5000, 6000))),
    Case("x-columns-16", "ik,jk->ij", ((300000, 64), (16, 64))),
    Case("x-vector", "ij,i->j", ((5003, 4999), (5003,))),
    Case("x-batch-many", "bij,bjk->bik", ((40000, 12, 20), (40000, 20, 14))),
    Case("x-batch-turned", "bij,bjk->bik", ((8, 1000, 700), (8, 700, 900)), memory=("ijb", "bkj")),
    Case("x-batch-shared", "bij,bjk->bik", ((64, 400, 300), (64, 300, 500)), memory=("bij", "jk")),
    Case("x-batch-sliced", "bij,bjk->bik", ((16, 800, 401), (16, 401, 600)), memory=("bi_j", "bjk")),
    Case("x-tccg-4d", "ebad,ce->abcd", ((33, 50, 40, 100), (70, 33))),
    Case("x-tccg-6d", "dega,gfbc->abcdef", ((14, 10, 24, 18), (24, 12, 20, 16))),
)

_ROWS: tuple[Case, ...] = (
    Case("x-rowdot-odd", "bnid,bnid->bni", ((6, 11, 4001, 33), (6, 11, 4001, 33))),
    Case("x-rowdot-turned", "bind,bnid->bni", ((4, 2048, 16, 64), (4, 16, 2048, 64))),
    Case("x-dot-turned", "ij,ji->", ((3001, 2999), (2999, 3001))),
    Case("x-scale-middle", "bij,bi->bij", ((31, 700, 900), (31, 700))),
    Case("x-outer-turned", "bi,bj->jbi", ((96, 500), (96, 400))),
    Case("x-sum-turned", "bij->jb", ((128, 500, 301),)),
    Case("x-sum-first", "aij,jk->ik", ((64, 500, 501), (501, 400))),
    Case("x-trace", "abii->ab", ((1500, 800, 4, 4),)),
    Case("x-diagonal", "bii,bijk->bjk", ((128, 40, 40), (128, 40, 50, 61))),
)

_SEVERAL: tuple[Case, ...] = (
    Case("x-form", "bi,bij,bj->b", ((512, 160), (512, 160, 181), (512, 181))),
    Case("x-bilinear-odd", "bi,oij,bj->bo", ((20001, 96), (99, 96, 103), (20001, 103))),
    Case("x-chain3", "ai,ij,jb->ab", ((5000, 72), (72, 40), (40, 4000))),
)

EXTRA: tuple[Case, ...] = (*_ATTENTION, *_MATRICES, *_ROWS, *_SEVERAL)

FAMILIES: dict[str, tuple[Case, ...]] = {
    "public": CONTRACTIONS,
    "extra": EXTRA,
    "all": (*CONTRACTIONS, *EXTRA),
    "models": MODELS,
    "sweep": SWEEP,
}
"""What ``--cases`` chooses from."""
