"""Contractions of many kinds: ours against whatever else contracts the same arrays, and the device itself.

CuPy's and cuTENSOR's arrays are torch's own memory, wrapped through DLPack, and their work is on the same stream:
one clock sees it all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import einops_fast
from einops_fast.profiles.contraction.cases import FAMILIES
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.study import Maker, Study, Task
from einops_fast.profiles.ways import Call, Way, compiled_once

Function = Callable[..., Any]


def _native(task: Task) -> Function:
    # NumPy's plain einsum never calls BLAS; what ours has to beat is the one that does.
    options = {"optimize": True} if task.framework.name == "numpy" else {}
    return partial(task.framework.einsum, task.case.called, **options)


def _opt_einsum(task: Task) -> Function:
    from opt_einsum import contract

    return partial(contract, task.case.called)


def _compile(task: Task) -> Way:
    torch, equation = task.framework.torch, task.case.called
    prepare = compiled_once(torch)
    return Way("compile", lambda *operands: torch.einsum(equation, *operands), task.framework, prepare=prepare)


def _cupy(task: Task) -> Way:
    cupy = import_cupy(task.framework)
    return _wrapped("cupy", partial(cupy.einsum, task.case.called), task, cupy)


def _cutensor(task: Task) -> Way:
    case, cupy, cutensor = task.case, import_cupy(task.framework), import_module("cupyx.cutensor")
    if len(case.inputs) != 2:
        raise Unavailable("a contraction has two operands")

    def call(left: Any, right: Any) -> Any:
        result = cupy.empty(case.result_shape, left.dtype)
        return cutensor.contraction(1.0, left, case.inputs[0], right, case.inputs[1], 0.0, result, case.output)

    return _wrapped("cutensor", call, task, cupy)


def _wrapped(name: str, call: Function, task: Task, cupy: Any) -> Way:
    """Return a way on CuPy arrays in the memory of torch tensors."""
    if task.dtype == "bfloat16":
        raise Unavailable("CuPy has no bfloat16")

    def prepare(call: Function, *operands: Any) -> Call:
        return partial(call, *map(cupy.from_dlpack, operands))

    return Way(name, call, task.framework, prepare=prepare, finish=import_module("torch").from_dlpack)


def _in_torch(framework: Framework) -> None:
    if framework.name != "torch":
        raise Unavailable("this is measured on torch tensors")


def _not_in_mxnet(framework: Framework) -> None:
    if framework.name == "mxnet":
        raise Unavailable("opt_einsum has no backend for it")


def import_cupy(framework: Framework) -> Any:
    """Return CuPy, for a torch on a GPU; raise :class:`Unavailable` where it doesn't work."""
    _in_torch(framework)
    if framework.device != "gpu":
        raise Unavailable("CuPy runs on a GPU only")
    if find_spec("cupy") is None:
        raise Unavailable("CuPy isn't installed")
    try:
        cupy = import_module("cupy")
        cupy.ones(1).sum()
    except Exception as error:  # a CuPy for another CUDA fails in many ways
        raise Unavailable(f"CuPy can't be used: {error}".split("\n")[0]) from None
    return cupy


def _contracting(framework: Framework) -> None:
    cupy = import_cupy(framework)
    try:
        # The library itself may be looked for, and missed, at the first call only.
        one = cupy.ones((1, 1), "float32")
        cutensor = import_module("cupyx.cutensor")
        cutensor.contraction(1.0, one, "ij", one, "jk", 0.0, cupy.empty((1, 1), "float32"), "ik")
    except Exception as error:
        raise Unavailable(f"cuTENSOR can't be used: {error}".split("\n")[0]) from None


class ContractionStudy(Study):
    """A row per dtype, case and implementation, with the floor of ceilings from the same process.

    CuPy's einsum is measured beside torch's; ask by name for ours on CuPy arrays, and for MXNet, whose own einsum takes
    seconds for most of the cases.
    """

    about = "many equations against all that contracts the same arrays, and the device"
    frameworks = ("numpy", "torch")
    families = FAMILIES
    own_cases = True
    makers: Mapping[str, Maker] = {
        "native": _native,
        "opt_einsum": _opt_einsum,
        "compile": _compile,
        "cupy": _cupy,
        "cutensor": _cutensor,
        "fast_einsum": lambda task: partial(einops_fast.fast_einsum, task.case.called),
    }
    needs: Mapping[str, Callable[[Framework], object]] = {
        "opt_einsum": _not_in_mxnet,
        "compile": _in_torch,
        "cupy": import_cupy,
        "cutensor": _contracting,
    }
    ours = "fast_einsum"
    peers = tuple(makers)[:-1]
    guests = ("compile", "cupy", "cutensor")
    on_cpu = ("native", "opt_einsum", "fast_einsum")
    profiled = True
    compiled = ("fast_einsum", "compile")
    dtypes: Mapping[str, tuple[str, ...]] = {
        "torch cpu": ("float32", "bfloat16"),
        "torch gpu": ("float16", "float32"),
        "cupy gpu": ("float16", "float32"),
        "cpu": ("float32",),
        "gpu": ("float32",),
    }

    def ways(self, task: Task) -> list[Way]:
        """All forward; backward is timed against the native einsum alone."""
        return [way for way in super().ways(task) if not task.backward or way.name in (self.ours, self.native)]
