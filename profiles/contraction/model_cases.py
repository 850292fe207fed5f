"""Further cases: equations as models and numerical codes are written with, at sizes that these have.

No tile was chosen by these. Each case holds between 10 MB (float16) and 400 MB (float32) on a GPU.
"""

from __future__ import annotations

from einops_fast.profiles.cases import Case

__all__ = ["MODELS"]

_LAYERS: tuple[Case, ...] = (
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
)
"""Projections, experts, adapters, per-head products."""

_STATES: tuple[Case, ...] = (
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
)
"""State-space models (Mamba, in chunks) and scans."""

_STRUCTURES: tuple[Case, ...] = (
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
)
"""AlphaFold's pairs, capsules, graphs, rotations of points, rays."""

_IMAGES: tuple[Case, ...] = (
    Case("m-correlation", "bchw,bcij->bhwij", ((1, 256, 64, 80), (1, 256, 64, 80))),
    Case("m-gram", "bchw,bdhw->bcd", ((8, 256, 96, 96), (8, 256, 96, 96))),
    Case("m-modulate", "bi,oikl->boikl", ((16, 512), (512, 512, 3, 3))),
    Case("m-demodulate", "boikl,boikl->bo", ((8, 512, 512, 3, 3), (8, 512, 512, 3, 3))),
    Case("m-dynamic-filter", "bkhw,bckhw->bchw", ((4, 9, 64, 64), (4, 128, 9, 64, 64))),
    Case("m-fourier", "bixy,ioxy->boxy", ((16, 64, 64, 33), (64, 64, 64, 33))),
    Case("m-mean-square", "bchw,bchw->c", ((32, 256, 48, 48), (32, 256, 48, 48))),
)
"""Images: correlations, styles, filters, Fourier layers."""

_TENSORS: tuple[Case, ...] = (
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
"""Decompositions, forms, weighted and scaled products, quantum states."""

MODELS: tuple[Case, ...] = (*_LAYERS, *_STATES, *_STRUCTURES, *_IMAGES, *_TENSORS)
