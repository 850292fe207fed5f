"""Hopper's attention kernels: on such a GPU, or, where there is none, their sources executed by NumPy, step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from attention_problems import DEVICE, Poisoned, check, check_low_precision, hopper_calls, needs_hopper
from gluon_on_cpu import hopper_on_cpu

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.torch.memory import TorchMemory

ON_GPU = DEVICE == "cuda"

MARKS: list[Any] = needs_hopper if ON_GPU else []
"""Of tests that run the kernels."""


@contextmanager
def hopper_kernels(programs: int = 4) -> Iterator[list[str]]:
    """Have the kernels run, on a CPU by few programs, of which each has several tiles; gives their names, in order."""
    if ON_GPU:
        with hopper_calls() as ran:
            yield ran
        return
    with (
        hopper_on_cpu() as ran,
        mock.patch.object(TorchMemory, "processors", return_value=((9, 0), programs)),
        mock.patch.object(torch_attention_runs, "MEMORY", Poisoned()),
        mock.patch.object(torch_attention_runs, "_calls", {}),
    ):
        yield ran


def check_hopper(spec: AttentionSpec, inputs: AttentionInputs, gradients: bool = True) -> None:
    """Results, and on a GPU in any case gradients, are as exact as half precision allows."""
    if ON_GPU:
        check_low_precision(spec, inputs)
    else:
        check(spec, inputs, gradients, tolerance=3e-3)


def kernels_of(spec: AttentionSpec, gradients: bool = True) -> list[str]:
    """The kernels that such a check runs."""
    if not (gradients or ON_GPU):
        return ["hopper_kernel"]
    wide = max(spec.head_dim, spec.v_head_dim) > 128
    shared = spec.bias is not None and spec.bias[:-2] != spec.batch and 1 not in spec.bias[-2:]
    return [
        "hopper_kernel", *["hopper_values_kernel"] * wide, "hopper_keys_kernel", "hopper_queries_kernel",
        *["hopper_bias_kernel"] * shared,
    ]  # fmt: skip
