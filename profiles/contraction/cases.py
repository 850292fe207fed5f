"""Cases beside the public ones, by family.

``extra`` has the classes of the public ones at other extents and in other layouts: no tile was chosen by these. Extents
are odd, prime, aligned to 4 or 8 elements, tiny or long; operands are also turned, expanded and sliced. ``models`` has
equations as models and numerical codes are written with. ``sweep`` has a few contractions from small to large, for
curves; a case of it is called ``curve@size``.

Each case of the first two holds between 10 MB (float16) and 400 MB (float32) on a GPU.
"""

from __future__ import annotations

from einops_fast.profiles.cases import CONTRACTIONS, Case

EXTRA: tuple[Case, ...] = (
    # Attention.
    Case("x-qk-odd", "bind,bjnd->bnij", ((3, 1009, 11, 72), (3, 997, 11, 72))),
    Case("x-qk-decode", "bind,bjnd->bnij", ((32, 1, 32, 128), (32, 251, 32, 128))),
    Case("x-qk-grouped", "bind,bjd->bnij", ((8, 500, 8, 64), (8, 516, 64))),
    Case("x-qk-packed", "bind,bjnd->bnij", ((4, 700, 10, 64), (4, 700, 10, 64)), memory=("bi_nd", "bj_nd")),
    Case("x-pv-odd", "bnij,bjnd->bind", ((3, 9, 1021, 1023), (3, 1023, 9, 80))),
    Case("x-pv-few", "bnij,bjnd->bind", ((16, 32, 4, 512), (16, 512, 32, 128))),
    Case("x-proj-4", "bnih,nhd->bid", ((4, 12, 1028, 68), (12, 68, 1540))),
    Case("x-linattn-deep", "bind,bine->bnde", ((2, 32768, 4, 48), (2, 32768, 4, 56))),
    Case("x-ellipsis", "abid,abjd->abij", ((12, 10, 400, 40), (12, 10, 396, 40)), spelled="...id,...jd->...ij"),
    # Matrices.
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
    # Rows: products, scales, sums, diagonals.
    Case("x-rowdot-odd", "bnid,bnid->bni", ((6, 11, 4001, 33), (6, 11, 4001, 33))),
    Case("x-rowdot-turned", "bind,bnid->bni", ((4, 2048, 16, 64), (4, 16, 2048, 64))),
    Case("x-dot-turned", "ij,ji->", ((3001, 2999), (2999, 3001))),
    Case("x-scale-middle", "bij,bi->bij", ((31, 700, 900), (31, 700))),
    Case("x-outer-turned", "bi,bj->jbi", ((96, 500), (96, 400))),
    Case("x-sum-turned", "bij->jb", ((128, 500, 301),)),
    Case("x-sum-first", "aij,jk->ik", ((64, 500, 501), (501, 400))),
    Case("x-trace", "abii->ab", ((1500, 800, 4, 4),)),
    Case("x-diagonal", "bii,bijk->bjk", ((128, 40, 40), (128, 40, 50, 61))),
    # Several operands.
    Case("x-form", "bi,bij,bj->b", ((512, 160), (512, 160, 181), (512, 181))),
    Case("x-bilinear-odd", "bi,oij,bj->bo", ((20001, 96), (99, 96, 103), (20001, 103))),
    Case("x-chain3", "ai,ij,jb->ab", ((5000, 72), (72, 40), (40, 4000))),
)

MODELS: tuple[Case, ...] = (
    # Projections, experts, adapters, per-head products.
    Case("m-moe", "ecd,edf->ecf", ((16, 1024, 1024), (16, 1024, 2816))),
    Case("m-moe-dispatch", "gsec,gsm->egcm", ((8, 1024, 16, 128), (8, 1024, 512))),
    Case("m-moe-combine", "gsec,egcm->gsm", ((8, 1024, 16, 128), (16, 8, 128, 512))),
    Case("m-lora", "bsd,dr,rf->bsf", ((4, 2048, 2048), (2048, 16), (16, 2048))),
    Case("m-block-diagonal", "bshd,hde->bshe", ((8, 2048, 16, 64), (16, 64, 64))),
    Case("m-monarch", "bkq,qsk->bqs", ((8192, 32, 32), (32, 32, 32))),
    Case("m-outers", "bi,bj->bij", ((8192, 64), (8192, 72))),
    Case("m-pool", "bsd,bs->bd", ((64, 1024, 768), (64, 1024))),
    Case("m-point", "bsd,bd->bs", ((64, 1024, 768), (64, 768))),
    Case("m-sum-heads", "bhij->bij", ((8, 12, 800, 800),)),
    Case("m-norm-scores", "bhid,bhjd,h->bhij", ((4, 12, 700, 64), (4, 12, 700, 64), (12,))),
    Case("m-relative", "bhid,ijd->bhij", ((4, 8, 512, 64), (512, 512, 64))),
    Case("m-relative-high", "bhwc,hkc->bhwk", ((64, 64, 64, 64), (64, 64, 64))),
    Case("m-relative-wide", "bhwc,wkc->bhwk", ((64, 64, 64, 64), (64, 64, 64))),
    Case("m-linear-attention", "bhdn,bhen->bhde", ((8, 8, 32, 16384), (8, 8, 32, 16384))),
    # State-space models (Mamba, in chunks) and scans.
    Case("m-ssm-out", "bldn,bln->bld", ((4, 1024, 1024, 16), (4, 1024, 16))),
    Case("m-ssm-in", "bld,bln,bld->bldn", ((4, 1024, 1024), (4, 1024, 16), (4, 1024, 1024))),
    Case(
        "m-ssd-chunk",
        "bclhn,bcshn,bhcls,bcshp->bclhp",
        ((2, 16, 128, 16, 64), (2, 16, 128, 16, 64), (2, 16, 16, 128, 128), (2, 16, 128, 16, 64)),
    ),
    Case("m-ssd-state", "bclhn,bhcl,bclhp->bchpn", ((2, 32, 128, 16, 64), (2, 16, 32, 128), (2, 32, 128, 16, 64))),
    Case("m-ssd-pass", "bhzc,bchpn->bzhpn", ((2, 16, 33, 33), (2, 33, 16, 64, 64))),
    Case("m-ssd-out", "bclhn,bchpn,bhcl->bclhp", ((2, 32, 128, 16, 64), (2, 32, 16, 64, 64), (2, 16, 32, 128))),
    # AlphaFold's pairs, capsules, graphs, rotations of points, rays.
    Case("m-triangle-out", "bikc,bjkc->bijc", ((1, 384, 384, 128), (1, 384, 384, 128))),
    Case("m-triangle-in", "bkic,bkjc->bijc", ((1, 384, 384, 128), (1, 384, 384, 128))),
    Case("m-outer-mean", "bsic,bsjd->bijcd", ((1, 128, 256, 32), (1, 128, 256, 32))),
    Case("m-pair-weighted", "bijh,bsjhc->bsihc", ((1, 256, 256, 8), (1, 128, 256, 8, 32))),
    Case("m-capsule", "ijmn,bin->bijm", ((1152, 10, 16, 8), (96, 1152, 8))),
    Case("m-capsule-sum", "bij,bijm->bjm", ((128, 1152, 10), (128, 1152, 10, 16))),
    Case("m-graph", "vw,ncwt->ncvt", ((207, 207), (64, 64, 207, 12))),
    Case("m-st-gcn", "nkctv,kvw->nctw", ((64, 3, 64, 75, 25), (3, 25, 25))),
    Case("m-rotate", "bnij,bnj->bni", ((64, 16384, 3, 3), (64, 16384, 3))),
    Case("m-compose", "nij,njk->nik", ((1000000, 3, 3), (1000000, 3, 3))),
    Case("m-matvecs", "nij,nj->ni", ((20000, 32, 32), (20000, 32))),
    Case("m-render", "nrs,nrsc->nrc", ((4, 16384, 128), (4, 16384, 128, 3))),
    # Images: correlations, styles, filters, Fourier layers.
    Case("m-correlation", "bchw,bcij->bhwij", ((1, 256, 64, 80), (1, 256, 64, 80))),
    Case("m-gram", "bchw,bdhw->bcd", ((8, 256, 96, 96), (8, 256, 96, 96))),
    Case("m-modulate", "bi,oikl->boikl", ((16, 512), (512, 512, 3, 3))),
    Case("m-demodulate", "boikl,boikl->bo", ((8, 512, 512, 3, 3), (8, 512, 512, 3, 3))),
    Case("m-dynamic-filter", "bkhw,bckhw->bchw", ((4, 9, 64, 64), (4, 128, 9, 64, 64))),
    Case("m-fourier", "bixy,ioxy->boxy", ((16, 64, 64, 33), (64, 64, 64, 33))),
    Case("m-mean-square", "bchw,bchw->c", ((32, 256, 48, 48), (32, 256, 48, 48))),
    # Decompositions, forms, weighted and scaled products, quantum states.
    Case("m-cp", "ir,jr,kr->ijk", ((300, 32), (256, 32), (320, 32))),
    Case("m-mttkrp", "ijk,jr,kr->ir", ((400, 300, 256), (300, 32), (256, 32))),
    Case("m-tucker", "abc,ai,bj,ck->ijk", ((32, 32, 32), (32, 256), (32, 256), (32, 300))),
    Case("m-khatri-rao", "ir,jr->ijr", ((1000, 64), (700, 64))),
    Case("m-quadratic", "ni,ij,nj->n", ((200000, 64), (64, 64), (200000, 64))),
    Case("m-trace-product", "bij,bji->b", ((512, 240, 256), (512, 256, 240))),
    Case("m-normal", "ki,k,kj->ij", ((60000, 256), (60000,), (60000, 256))),
    Case("m-batched-normal", "bki,bk,bkj->bij", ((2048, 128, 24), (2048, 128), (2048, 128, 24))),
    Case("m-column-scale", "ij,j->ij", ((6000, 4000), (4000,))),
    Case("m-both-scale", "i,ij,j->ij", ((6000,), (6000, 4000), (4000,))),
    Case("m-gate", "abcdefghijklmnopqrstuvy,wxch->abwdefgxijklmnopqrstuvy", ((2,) * 23, (2,) * 4)),
    Case("m-gate-last", "abcdefghijklmnopqrstuvy,wzuy->abcdefghijklmnopqrstwvz", ((2,) * 23, (2,) * 4)),
    Case("m-mps", "aib,bjc->aijc", ((1024, 2, 1024), (1024, 2, 1024))),
    Case("m-mps-norm", "ab,aic,bid->cd", ((1024, 1024), (1024, 2, 1024), (1024, 2, 1024))),
)


def _sizes(first: int, last: int) -> list[int]:
    return [1 << power for power in range(first.bit_length() - 1, last.bit_length())]


SWEEP: tuple[Case, ...] = (
    *(Case(f"matmul@{n}", "ik,kj->ij", ((n, n), (n, n))) for n in _sizes(64, 8192)),
    *(Case(f"scores@{n}", "bind,bjnd->bnij", ((8, n, 16, 64), (8, n, 16, 64))) for n in _sizes(64, 2048)),
    *(Case(f"values@{n}", "bnij,bjnd->bind", ((8, 16, n, n), (8, n, 16, 64))) for n in _sizes(64, 2048)),
    *(Case(f"rowdot@{n}", "bind,bind->bni", ((8, n, 16, 64), (8, n, 16, 64))) for n in _sizes(64, 16384)),
    *(Case(f"scale@{n}", "bij,bj->bij", ((64, n, 1024), (64, 1024))) for n in _sizes(16, 4096)),
)


# What ``--cases`` chooses from.
FAMILIES: dict[str, tuple[Case, ...]] = {
    "public": CONTRACTIONS,
    "extra": EXTRA,
    "all": (*CONTRACTIONS, *EXTRA),
    "models": MODELS,
    "sweep": SWEEP,
}
