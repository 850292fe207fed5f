"""Kernels in Gluon run on a CPU, by NumPy and threads: what they compute, where, and in what order.

The kernels' sources are executed with stand-ins for the functions of Gluon that they call. Of Hopper's kernels, those
of attention and the one that contracts boxes, each warp group and the copying warp is a thread; barriers, phases and
announced bytes are those of the hardware, so that a wrong count is a deadlock here, too. Of kernels for clusters, a
program is a whole cluster. What is not here: layouts, registers, alignment, and that reading and writing take time.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from gluon_stand_ins import Descriptor, Pointer, stand_ins, tensor

from einops_fast.backends.triton.attention.hopper import call as hopper_call
from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.contraction.threads import kernel as fma_contraction
from einops_fast.backends.triton.contraction.ways import BoxKernel
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall, KernelCall
from einops_fast.backends.triton.rows import cluster_tilings

_RECORDS = ".contraction.tiling"
"""The module whose names are imported as they are: no kernel is in there."""

_DEVICE_CODE = (
    ".attention.decode.",
    ".attention.general.loading",
    ".attention.hopper.",
    ".contraction.boxes.",
    ".contraction.matrix_product",
    ".device.indexing",
    ".device.offsets",
    ".rows.activation.",
    ".rows.cluster",
    ".rows.norm.",
    ".rows.softmax.",
    ".rows.tiles",
)
"""Modules whose functions are executed: others are replaced by stand-ins."""


@lru_cache(maxsize=64)
def _source(name: str) -> tuple[Any, tuple[tuple[str, tuple[str, ...]], ...]]:
    """A module of kernels without what it imports of Triton, and what it imports of other modules of kernels."""
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    kept: list[ast.stmt] = []
    imports: list[tuple[str, tuple[str, ...]]] = []
    for each in tree.body:
        source = each.module or "" if isinstance(each, ast.ImportFrom) else ""
        if isinstance(each, ast.Import):
            source = each.names[0].name
        if any(part in source for part in _DEVICE_CODE):
            assert isinstance(each, ast.ImportFrom)
            imports.append((source, tuple(alias.name for alias in each.names)))
        elif "triton" not in source or source.endswith(_RECORDS):
            kept.append(each)
    tree.body = kept
    return compile(tree, name, "exec"), tuple(imports)


def executed(name: str, names: dict[str, Any], done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The names of a module of kernels, with ``names`` for what it imports from elsewhere.

    Those of the modules of kernels that it needs are added to ``done``.
    """
    if name in done:
        return done[name]
    code, imports = _source(name)
    module = ModuleType(name)
    module.__dict__.update(names)
    for source, wanted in imports:
        found = executed(source, names, done)
        module.__dict__.update({each: found[each] for each in wanted})
    with mock.patch.dict("sys.modules", {name: module}):
        exec(code, module.__dict__)
    done[name] = module.__dict__
    return module.__dict__


def _numbers(value: Any) -> Any:
    if isinstance(value, tuple):
        numbers = map(_numbers, value)
        return tuple(numbers) if type(value) is tuple else type(value)(*numbers)
    return tensor(np.int64(value) if isinstance(value, int) else np.float32(value))


def _flat(array: Any) -> Any:
    """The memory of a tensor from its first element on."""
    array = array.detach().view(torch.uint8) if array.dtype == torch.bool else array.detach()
    elements = array.untyped_storage().nbytes() // array.element_size() - array.storage_offset()
    return torch.as_strided(array, (elements,), (1,)).numpy()


@contextmanager
def hopper_on_cpu() -> Iterator[list[str]]:
    """Have Hopper's kernels chosen and executed here; gives the names of those that were, in order."""
    ran: list[str] = []

    def execute(self: Any, memory: Any, device: int, *arrays: Any) -> bool:
        function, programs = getattr(self.function, "fn", self.function), self.grid[0]
        given: list[Any] = []
        for array, seen in zip(arrays, self._declared, strict=True):
            assert (array is None) == (seen is None)
            if array is None:
                given.append(None)
            elif seen.box:
                given.append(Descriptor(_flat(array), seen.shape, seen.strides, seen.box))
            else:
                given.append(Pointer(_flat(array)))
        for program in range(programs):
            names = executed(function.__module__, stand_ins(program, programs), {})
            names[function.__name__](*given, *map(_numbers, self.tail), self.constants["tiling"])
        ran.append(function.__name__)
        return True

    with (
        mock.patch.object(DeclaredCall, "__call__", execute),
        mock.patch.object(hopper_call, "interpreted", return_value=False),
    ):
        yield ran


def by_threads_on_cpu(tiling: Any, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Execute the contraction kernel by threads here, program by program."""
    given = [Pointer(_flat(array)) for array in (left, right, left, out, out)]
    programs, parts, _ = tiling.grid
    for program in range(programs):
        for part in range(parts):
            names = {**vars(fma_contraction), **stand_ins(program, programs, part)}
            names = executed(fma_contraction.__name__, names, {})
            names["fma_kernel"](*given, tiling, np.float32, False)


@contextmanager
def boxes_on_cpu(programs: int) -> Iterator[None]:
    """Have contraction kernels with boxes chosen, and executed here by so many programs."""

    def execute(self: BoxKernel, memory: Any, device: int, *arrays: Any) -> bool:
        # Nothing is copied to the result where threads write.
        given = [
            Descriptor(_flat(array), seen.shape, seen.strides, seen.box) if seen.box else Pointer(_flat(array))
            for array, seen in zip(self._ordered(arrays), self._declared, strict=True)
        ]
        for program in range(min(programs, self.tiling.total)):
            names, done = stand_ins(program, min(programs, self.tiling.total)), {}
            executed("einops_fast.backends.triton.contraction.matrix_product", names, done)["_features"] = _features
            names = executed("einops_fast.backends.triton.contraction.boxes.kernel", names, done)
            names["box_kernel"](*given, self.tiling)
        return True

    with (
        mock.patch.object(BoxKernel, "__call__", execute),
        mock.patch.object(candidates, "copies_boxes", return_value=True),
    ):
        yield


def _features(epilogue: Any, dtype: Any) -> Any:
    return SimpleNamespace(kind=epilogue.activation, digits=11 if dtype.itemsize == 2 else 24)


@contextmanager
def rows_on_cpu() -> Iterator[None]:
    """Have kernels for clusters chosen, and executed here."""
    call = KernelCall.__call__

    def execute(self: KernelCall, memory: Any, device: int, *arrays: Any) -> None:
        function = self.function.fn
        if ".cluster" not in function.__module__:
            call(self, memory, device, *arrays)
            return
        given = [None if array is None else Pointer(_flat(array)) for array in arrays]
        for program in range(self.grid[0]):
            names = executed(function.__module__, stand_ins(program, self.grid[0]), {})
            names[function.__name__](*given, *_numbers(self.tail), **self.constants)

    with (
        mock.patch.object(KernelCall, "__call__", execute),
        mock.patch.object(cluster_tilings, "interpreted", return_value=False),
    ):
        yield
