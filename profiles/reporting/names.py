"""What the short names of ways and columns mean, for whoever meets them first on the page."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMES = {
    "case": "a problem; what is called, and its sizes, stand in its line of the table",
    "ours": "einops_fast, as it chooses by itself",
    "fast_einsum": "ours: einops_fast.fast_einsum",
    "patched": "ours: the framework's own einsum within einops_fast.patched",
    "contract_expression": "ours: a plan made before, einops_fast.contract_expression",
    "triton": "ours: its attention kernels alone, without the choice among libraries",
    "optimize": "ours: the model after nn.optimize, not compiled",
    "optimize+compile": "ours: the model after nn.optimize, compiled by torch",
    "attention()": "ours: the two einsums and the softmax as one call of attention",
    "ours+graphs": "ours, with steps captured in CUDA graphs: the host's time is no part of a step's",
    "native": "the framework's own function or layer; of NumPy, einsum with optimize=True",
    "eager": "the program as it is, not compiled",
    "einsum": "the framework's own einsum",
    "einsum_optimize": "the same with optimize=True",
    "no_einsum": "products written by hand in the framework's functions",
    "th_einsum": "torch.einsum on the same values",
    "compile": "the same by torch.compile, with its own backend",
    "max-autotune": "the same by torch.compile in its mode max-autotune",
    "compile+graphs": "the same with steps captured in CUDA graphs, its mode reduce-overhead",
    "opt_einsum": "opt_einsum.contract",
    "cupy": "cupy.einsum on the same memory",
    "cutensor": "cuTENSOR's contraction, called by CuPy",
    "cudnn": "cuDNN's attention, called by torch",
    "flash": "FlashAttention 2, called by torch",
    "fa4": "FlashAttention 4",
    "flex": "torch's FlexAttention, compiled",
    "efficient": "the memory-efficient attention of xFormers, called by torch",
    "naive": "attention written as products and a softmax",
    "sdpa": "the layer with torch's scaled_dot_product_attention",
    "liger": "Liger-Kernel",
    "quack": "QuACK",
    "linear": "the product alone, without what follows it; no peer",
    "floor": "the least time in which the device could move the bytes and multiply, by rates measured in the same run",
    "spread": "interquartile range of the rounds",
    "best": "the fastest peer, which is not ours",
    "ratios": "over 1, ours is faster; of ours/floor, less is better; ≈: within noise, as the spreads of both overlap",
    "host": "time until the call returns, while the device still computes",
    "moved": "bytes of operands and result, each once",
    "peak": "bytes held at most beside the operands",
    "ours by": "which implementation ours chose",
    "check": "against float64, on other values",
}
"""By name, in the order in which they are told."""


def explained(texts: Iterable[str], known: set[str]) -> dict[str, str]:
    """Return the names that stand in texts and aren't known yet, with what they mean; they are known then."""
    words = {word for text in texts for word in (text, *re.split(r"[ /,:()]+", text))}
    words |= {"ratios"} if {"best/ours", "native/ours"} & words else set()
    told = {name: meaning for name, meaning in NAMES.items() if name in words - known}
    known.update(told)
    return told
