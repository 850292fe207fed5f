"""The attention kernels go through Triton's compiler, with the default tiles, for GPUs that needn't be here."""

from pathlib import Path

import pytest
from compiling import FINISH, printed

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = (
    FINISH
    + """
import sys

import torch

pretend(90)

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.torch.attention.layouts import extras_of
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.attention import plan as attention_plan
from einops_fast.backends.triton.attention.around import mask_bounds
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.attention.general.tilings import shared_memory
from einops_fast.backends.triton.launching.compiling import untangled

on = 9, 0
TorchMemory.processors = lambda self, device: (on, 132)
compile = KernelCall.compile_for

def report(function, compiled, most):
    # Threads may compile side by side: a line has to be written at once.
    ptx = compiled.asm["ptx"]
    assert untangled(ptx) == ptx
    wgmma = "wgmma" in ptx
    shared = compiled.metadata.shared
    sys.stdout.write(f"{case} {function.fn.__name__} {compiled.hash} {shared} {wgmma}\\n")
    assert shared <= most
    return compiled

def compiled(self, *arrays):
    # Of programs that share a multiprocessor, each may have half of its memory.
    programs = getattr(self.constants.get("tiling"), "programs", 1)
    return report(self.function, compile(self, *arrays), shared_memory(on) // programs)

KernelCall.compile_for = compiled
of_hopper = (
    (attention_plan, "suits_hopper"),
    (attention_plan, "suits_hopper_backward"),
    (attention_plan, "suits_decode"),
)
suits = [getattr(*each) for each in of_hopper]
for case in sys.argv[1:]:
    dtype, length, head_dim, v_head_dim, *flags = case.split()
    finish("finished" in flags)
    for (module, name), suit in zip(of_hopper, suits, strict=True):
        setattr(module, name, suit if "hopper" in flags else lambda *of: False)
    length, head_dim, v_head_dim, batch = int(length), int(head_dim), int(v_head_dim), (2, 4, 2)
    keys = 4096 if "long" in flags else 509 if "uneven" in flags else length if "short" in flags else 512
    odd = "odd" in flags
    kv_batch = (2, 4, 1) if "grouped" in flags else batch
    bias = {"broadcast-bias": (1, 4, 2, length, keys), "one-bias": (1, 1, 1, length, keys)}
    bias["bias"] = *batch, length, keys
    bias = next((shape for name, shape in bias.items() if name in flags), None)
    mask = (2, 1, 1, 1 if "bounded" in flags else length, keys) if "mask" in flags else None
    mask_bounds._WORTH = 0 if "bounded" in flags else 1 << 60
    page = next((int(flag.removeprefix("page")) for flag in flags if flag.startswith("page")), 0)
    if page:
        kv_batch = (2 * keys // page, *kv_batch[1:])
    q_batch = batch
    if "packed" in flags:
        q_batch, kv_batch = (1, *batch[1:]), (1, *kv_batch[1:])
    spec = AttentionSpec(
        batch, q_batch, kv_batch, kv_batch, length, keys, head_dim, v_head_dim, dtype, 0.1, causal="causal" in flags,
        window=(100, None) if "window" in flags else (None, None), softcap=20.0 * ("softcap" in flags), bias=bias,
        mask=mask, alibi="alibi" in flags, sinks="sinks" in flags, segments="segments" in flags,
        cache="cache" in flags, page_size=page, dropout_p=0.1 * ("dropout" in flags), varlen="packed" in flags,
    )
    ends = torch.tensor([0, 200, 512], dtype=torch.int32) if spec.varlen else None
    numbers = torch.int64 if "wide" in flags else torch.int32
    q, k, v, out = (
        torch.zeros(*sizes, last + odd, dtype=getattr(torch, dtype))[..., :last]
        for *sizes, last in ((*q_batch, length, head_dim), (*kv_batch, page or keys, head_dim),
                      (*kv_batch, page or keys, v_head_dim), (*q_batch, length, v_head_dim))
    )
    inputs = AttentionInputs(
        q, k, v,
        None if bias is None else torch.zeros(bias, dtype=q.dtype),
        None if mask is None else torch.ones(mask, dtype=torch.bool),
        torch.zeros(1, 4, 2) if spec.alibi else None,
        torch.zeros(1, 4, 2) if spec.sinks else None,
        torch.zeros(2, 1, 1, length, dtype=numbers) if spec.segments else None,
        torch.zeros(2, 1, 1, keys, dtype=numbers) if spec.segments else None,
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        cache_seqlens=torch.zeros(2, dtype=torch.int32) if spec.cache else None,
        block_table=torch.zeros(2, keys // page, dtype=torch.int32) if page else None,
        seed=torch.zeros(1, dtype=torch.int64) if spec.dropout_p else None,
    )
    arrays = tuple(vars(inputs).values())
    call, extras = torch_attention_runs.call_of(spec, arrays, lambda: spec), extras_of(arrays)
    out, lse = call.forward(q, k, v, extras)
    if "backward" in flags:
        wanted = (True, True, True, bias is not None, spec.sinks)
        call.backward(q, k, v, extras, out, lse, out, lse, wanted)
"""
)

CASES = [
    "float16 512 256 256 causal backward",
    "float16 512 80 96 grouped window softcap broadcast-bias mask segments alibi dropout sinks backward",
    "bfloat16 4 128 128 grouped causal cache page16",
    "float32 512 32 32 packed backward",
    "float64 512 32 32 mask backward",
    "bfloat16 509 64 32 odd uneven causal bias mask",
    "float32 4 32 32 grouped segments wide finished",
    "bfloat16 512 64 64 causal backward finished",
    "bfloat16 528 64 64 causal",
]
"""The last two differ in a length, which must not be compiled for, apart from whether it's a multiple of 16."""

SHORT = [
    "bfloat16 49 32 32 short broadcast-bias backward finished",
    "float16 100 48 64 short causal bias dropout sinks backward",
]

HOPPER = [
    "bfloat16 512 192 256 hopper grouped causal softcap backward",
    "bfloat16 512 75 53 hopper window one-bias mask backward",
    "bfloat16 4096 64 64 hopper causal long",
    "float16 512 64 64 hopper grouped causal mask bounded backward finished",
    "bfloat16 144 32 32 hopper short bias mask finished",
    "float16 136 64 64 hopper short uneven causal bias",
]

DECODE = [
    "bfloat16 1 128 128 hopper grouped",
    "bfloat16 4 256 256 hopper grouped causal cache sinks",
    "float16 3 80 64 hopper grouped window softcap cache page16 finished",
]


def test_kernels_compile(tmp_path: Path) -> None:
    """Other GPUs than Hopper have a case of each kernel in ``test_capabilities.py``: the compiler is what differs."""
    lines = printed(PROGRAM, tmp_path, *CASES, *SHORT)
    for case in CASES:
        kernels = [line.split()[-4] for line in lines if line.startswith(f"{case} ")]
        assert "forward_kernel" in kernels
        assert ("combine_kernel" in kernels) == (int(case.split()[1]) < 16)
        assert {"keys_kernel", "queries_kernel"} <= set(kernels) or "backward" not in case
        assert ("bias_kernel" in kernels) == ("broadcast-bias" in case)
    # The products of half precision are made by whole groups of warps.
    products = [line for line in lines if line.startswith(CASES[-2]) and "delta" not in line]
    assert len(products) == 3
    assert all(line.endswith("True") for line in products)
    hashes = {line.split()[-3] for line in lines if any(line.startswith(f"{case} forward") for case in CASES[-2:])}
    assert len(hashes) == 1
    for case in SHORT:
        kernels = {line.split()[-4] for line in lines if line.startswith(case)}
        summed = {"parts_kernel"} if "broadcast-bias" in case else set()
        assert kernels == {"short_forward_kernel", "short_gradients_kernel"} | summed


def test_hopper_kernels_compile(tmp_path: Path) -> None:
    lines = printed(PROGRAM, tmp_path, *HOPPER, *DECODE)
    for case in HOPPER:
        of_case = [line.split() for line in lines if line.startswith(case)]
        kernels = {"hopper_kernel"}
        if "backward" in case:
            kernels |= {"delta_kernel", "hopper_keys_kernel", "hopper_queries_kernel"}
        more = {
            "hopper_bias_kernel": "-bias" in case,
            "parts_kernel": "one-bias" in case,
            "rows_kernel": " 75 " in case or "uneven" in case,
            "mask_bounds_kernel": "bounded" in case,
            "hopper_values_kernel": " 192 " in case,
        }
        assert {line[-4] for line in of_case} == kernels | {name for name, there in more.items() if there}
        assert all(line[-1] == "True" for line in of_case if line[-4].startswith("hopper"))
    of_few = [line.split() for line in lines if any(line.startswith(case) for case in DECODE)]
    assert [line[-4] for line in of_few] == ["hopper_decode_kernel"] * len(DECODE)
    assert all(line[-1] == "True" for line in of_few)
