"""Kernels in Gluon run on a CPU, by NumPy and threads: what they compute, where, and in what order.

The kernels' sources are executed with stand-ins for the functions of Gluon that they call. Of Hopper's kernels, those
of attention and the one that contracts boxes, each warp group and the copying warp is a thread; barriers, phases and
announced bytes are those of the hardware, so that a wrong count is a deadlock here, too. Of kernels with rings, what is
copied to holds NaN until the copy is waited for. Of those for clusters, a program is a whole cluster. What is not here:
layouts, registers, alignment, and that reading and writing take time.
"""

from __future__ import annotations

import ast
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from einops_fast.backends.triton import candidates, cluster_tilings, fma_contraction, ring_tilings
from einops_fast.backends.triton.attention import hopper_decode_plan, hopper_plan
from einops_fast.backends.triton.attention.hopper_call import HopperCall
from einops_fast.backends.triton.attention.launch import KernelCall
from einops_fast.backends.triton.tma_launch import BoxKernel

__all__ = ["boxes_on_cpu", "by_threads_on_cpu", "functions_on_cpu", "hopper_on_cpu", "rows_on_cpu"]

_DEVICE_CODE = (
    ".activation",
    ".attention.hopper",
    ".attention.loading",
    ".triton.cluster_",
    ".triton.epilogue",
    ".triton.indexing",
    ".triton.norm",
    ".triton.ring_",
    ".triton.row_",
    ".triton.softmax",
    ".triton.tma_",
)
"""Modules whose functions are executed: others are replaced by stand-ins."""

_SECONDS = 60
"""After which waiting is a deadlock."""


class _Tensor(np.ndarray):
    """An array as kernels see it, numbers included."""

    def to(self, dtype: Any, bitcast: bool = False) -> _Tensor:
        return _tensor(np.asarray(self).view(dtype) if bitcast else np.asarray(self).astype(dtype))

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def permute(self, axes: Sequence[int]) -> _Tensor:
        return _tensor(np.asarray(self).transpose(axes))

    def __array_wrap__(self, array: Any, *_: Any) -> _Tensor:  # type: ignore[override]
        return _tensor(array)

    def __iadd__(self, other: Any) -> Any:  # type: ignore[override, misc]
        # A value, which may have other names.
        return self + other

    def __getitem__(self, at: Any) -> _Tensor:
        return _tensor(np.asarray(self)[at])


def _tensor(value: Any) -> _Tensor:
    return np.asarray(value).view(_Tensor)


class _Barrier:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.phase = self.count = self.pending = self.bytes = 0

    def init(self, count: int) -> None:
        self.count = self.pending = count

    def add(self, arrivals: int = 0, size: int = 0) -> None:
        with self.changed:
            self.pending -= arrivals
            self.bytes += size
            assert self.pending >= 0
            if self.pending == self.bytes == 0:
                self.phase += 1
                self.pending = self.count
                self.changed.notify_all()

    def wait(self, parity: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase % 2 != int(parity), _SECONDS), "deadlock"


class _Barriers:
    def __init__(self, count: int) -> None:
        self._all = [_Barrier() for _ in range(count)]

    def index(self, at: Any) -> _Barrier:
        return self._all[int(at)]


class _Shared:
    """A view of shared memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def reshape(self, shape: Sequence[int]) -> _Shared:
        return _Shared(self.array.reshape(shape))

    def permute(self, axes: Sequence[int]) -> _Shared:
        return _Shared(self.array.transpose(axes))

    def slice(self, start: int, length: int, dim: int) -> _Shared:
        return _Shared(self.array[(slice(None),) * dim + (slice(start, start + length),)])

    def load(self, layout: Any) -> _Tensor:
        return _tensor(self.array.copy())

    def store(self, value: Any) -> None:
        self.array[...] = np.asarray(value)


class _Buffers(_Shared):
    """Shared memory that nothing has been stored to."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        super().__init__(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 1, dtype))
        self.type = SimpleNamespace(shape=list(shape))
        self.dtype = dtype

    def _reinterpret(self, dtype: Any, shape: Sequence[int], layout: Any) -> _Buffers:
        other = _Buffers([0], dtype)
        other.array = self.array.reshape(shape)
        return other

    def index(self, at: Any) -> _Shared:
        assert 0 <= int(at) < len(self.array)
        return _Shared(self.array[int(at)])


class _Descriptor:
    """An array that boxes are copied from and to."""

    layout = None

    def __init__(self, memory: Any, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> None:
        strides = [stride * memory.itemsize for stride in strides]
        self.array = np.lib.stride_tricks.as_strided(memory, shape, strides)
        self.dtype = memory.dtype
        self.block_type = SimpleNamespace(shape=list(box), nbytes=int(np.prod(box)) * memory.itemsize)

    def inside(self, place: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """What of a box there is: where in the array, and where in the box."""
        starts = [int(each) for each in place]
        shape = zip(starts, self.block_type.shape, self.array.shape, strict=True)
        sizes = [max(0, min(box, size - start)) for start, box, size in shape]
        return (
            tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True)),
            tuple(slice(0, size) for size in sizes),
        )


class _Pointer:
    def __init__(self, memory: Any, offsets: Any = 0) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, more: Any) -> _Pointer:
        return _Pointer(self.memory, self.offsets + more)

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)


def _copy_in(array: _Descriptor, place: Sequence[Any], barrier: _Barrier, into: _Shared) -> None:
    there, here = array.inside(place)
    into.array[...] = 0
    into.array[here] = array.array[there]
    barrier.add(size=-array.block_type.nbytes)


def _copy_out(array: _Descriptor, place: Sequence[Any], of: _Shared) -> None:
    there, here = array.inside(place)
    array.array[there] = of.array[here]


def _added(pointer: _Pointer, value: int, **_: Any) -> _Tensor:
    """Add to one number, and give what it was. Programs run one after the other."""
    place = int(pointer.offsets)
    before = pointer.memory[place].copy()
    pointer.memory[place] += value
    return _tensor(before)


def _load(
    pointer: _Pointer, mask: Any = True, other: Any = 0, volatile: bool = False, eviction_policy: str = ""
) -> _Tensor:
    offsets = np.asarray(pointer.offsets)
    mask = np.broadcast_to(np.asarray(mask), offsets.shape)
    found = pointer.memory[np.where(mask, offsets, 0)]
    return _tensor(np.where(mask, found, np.asarray(other, found.dtype)))


def _store(pointer: _Pointer, value: Any, mask: Any = True) -> None:
    offsets = np.asarray(pointer.offsets)
    mask = np.broadcast_to(np.asarray(mask), offsets.shape)
    pointer.memory[offsets[mask]] = np.asarray(value)[mask]


def _exchange(pointer: _Pointer, value: Any, sem: str, scope: str) -> None:
    _store(pointer, value)


def _reduce(values: tuple[Any, ...], axis: int, function: Any) -> tuple[Any, ...]:
    columns = np.asarray(values[0]).shape[axis]
    found = tuple(np.take(np.asarray(each), 0, axis) for each in values)
    for at in range(1, columns):
        found = function(*found, *(np.take(np.asarray(each), at, axis) for each in values))
    return tuple(map(_tensor, found))


def _words(value: Any) -> Any:
    return np.asarray(value).astype(np.uint64)


def _high_product(left: Any, right: int) -> _Tensor:
    return _tensor((_words(left) * np.uint64(right) >> np.uint64(32)).astype(np.uint32))


def _low_product(left: Any, right: int, sanitize_overflow: bool) -> _Tensor:
    return _tensor((_words(left) * np.uint64(right)).astype(np.uint32))


def _low_sum(left: Any, right: int, sanitize_overflow: bool) -> _Tensor:
    return _tensor((_words(left) + np.uint64(right)).astype(np.uint32))


class _Copies:
    """Copies to shared memory, which arrive when they are waited for, and not before."""

    def __init__(self) -> None:
        self._group: list[tuple[Any, Any]] = []
        self._groups: list[list[tuple[Any, Any]]] = []

    def copy(self, into: _Shared, pointer: _Pointer, mask: Any = True) -> None:
        into.array[...] = np.nan
        self._group.append((into.array, _load(pointer, mask)))

    def commit(self) -> None:
        self._groups.append(self._group)
        self._group = []

    def wait(self, pending: int) -> None:
        while len(self._groups) > pending:
            for into, value in self._groups.pop(0):
                into[...] = value


def _product(left: Any, right: _Shared, sums: Any, use_acc: bool = True, is_async: bool = False) -> _Tensor:
    left = left.array if isinstance(left, _Shared) else np.asarray(left)
    product = left.astype(np.float32) @ right.array.astype(np.float32)
    return _tensor(product + np.asarray(sums) if use_acc else product)


def _memory(dtype: Any, shape: Sequence[int], layout: Any) -> Any:
    if layout == "barriers":
        return _Barriers(shape[0])
    return _Buffers(shape, dtype) if len(shape) > 2 else _Shared(_Buffers(shape, dtype).array)


def _side_by_side(parts: Sequence[tuple[Any, tuple[Any, ...]]], *_: Any) -> None:
    errors: list[BaseException] = []

    def run(function: Any, arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _as_it_is(function: Any = None, **_: Any) -> Any:
    """A decorator that does nothing, with options or without."""
    return _as_it_is if function is None else function


def _stand_ins(program: int, programs: int, part: int = 0) -> dict[str, Any]:
    """What the kernels find in place of Gluon; ``part`` is the program's number along the second axis of the grid."""

    def tensors(function: Any) -> Any:
        return lambda *arguments: _tensor(function(*map(np.asarray, arguments)))

    gl = SimpleNamespace(
        constexpr=lambda value: value, float32=np.float32, float64=np.float64, int32=np.int32, int64=np.int64,
        int1=np.bool_, uint32=np.uint32, static_range=range,
        warp_specialize=_side_by_side,
        program_id=lambda axis: _tensor(part if axis else program), num_programs=lambda axis: _tensor(programs),
        allocate_shared_memory=_memory, load=_load, store=_store, convert_layout=lambda value, layout: value,
        arange=lambda start, end, layout: _tensor(np.arange(start, end)),
        zeros=lambda shape, dtype, layout: _tensor(np.zeros(shape, dtype)),
        full=lambda shape, value, dtype, layout: _tensor(np.full(shape, value, dtype)),
        max=lambda value, axis: _tensor(np.asarray(value).max(axis)),
        sum=lambda value, axis: _tensor(np.asarray(value).sum(axis)),
        min=lambda value, axis: _tensor(np.asarray(value).min(axis)),
        zeros_like=tensors(np.zeros_like), where=tensors(np.where), maximum=tensors(np.maximum),
        minimum=tensors(np.minimum), exp2=tensors(np.exp2), log2=tensors(np.log2), log=tensors(np.log),
        sqrt=tensors(np.sqrt), exp=tensors(np.exp), to_tensor=_tensor,
        cast=lambda value, dtype: _tensor(value).to(dtype), reduce=_reduce, atomic_xchg=_exchange,
        inline_asm_elementwise=_nothing,
        umulhi=_high_product, mul=_low_product, add=_low_sum,
        atomic_add=_added, permute=lambda value, axes: _tensor(np.asarray(value).transpose(axes)),
        associative_scan=lambda value, axis, add: _tensor(np.cumsum(value, axis)),
        fma=tensors(lambda a, b, c: a * b + c), split=lambda value: (value[..., 0], value[..., 1]),
        BlockedLayout=_nothing, DotOperandLayout=_nothing, NVMMADistributedLayout=_nothing, SliceLayout=_nothing,
        SwizzledSharedLayout=_nothing, NVMMASharedLayout=SimpleNamespace(get_default_for=_nothing),
    )  # fmt: skip
    tl = SimpleNamespace(**vars(gl))
    tl.full = lambda shape, value, dtype: _tensor(np.full(shape, value, dtype))
    tl.maximum = lambda x, y, propagate_nan=None: gl.maximum(x, y)
    tl.abs, tl.PropagateNan = tensors(np.abs), SimpleNamespace(ALL=None)
    interpreted = SimpleNamespace(runtime=SimpleNamespace(interpret=True))
    copies = _Copies()
    functions = SimpleNamespace(jit=_as_it_is, constexpr_function=_as_it_is)
    return {
        "gl": gl,
        "tl": tl,
        "triton": SimpleNamespace(**vars(functions), knobs=interpreted),
        "async_copy": SimpleNamespace(
            async_copy_global_to_shared=copies.copy, commit_group=copies.commit, wait_group=copies.wait
        ),
        "gluon": functions,
        "tma": SimpleNamespace(
            async_copy_global_to_shared=_copy_in, async_copy_shared_to_global=_copy_out, store_wait=_nothing
        ),
        "mbarrier": SimpleNamespace(
            init=_Barrier.init,
            expect=lambda barrier, size: barrier.add(1, int(size)),
            arrive=lambda barrier, pred=True: barrier.add(1) if pred else None,
            wait=_Barrier.wait,
            MBarrierLayout=lambda: "barriers",
        ),
        "warpgroup_mma": _product,
        "warpgroup_mma_wait": lambda pendings, deps: deps[0] if len(deps) == 1 else tuple(deps),
        "fence_async_shared": _nothing,
        "barrier": _nothing,
        "field": getattr,
        "min": lambda *each: _tensor(min(map(int, each))),
        "range": lambda *ends: (_tensor(at) for at in range(*map(int, ends))),
    }


def _executed(name: str, stand_ins: dict[str, Any], done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The names of a module of kernels, with ``stand_ins`` for what it imports from elsewhere."""
    if name in done:
        return done[name]
    module = types.ModuleType(name)
    module.__dict__.update(stand_ins)
    found = find_spec(name)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())
    kept: list[ast.stmt] = []
    for each in tree.body:
        source = each.module or "" if isinstance(each, ast.ImportFrom) else ""
        if isinstance(each, ast.Import):
            source = each.names[0].name
        if any(each in source for each in _DEVICE_CODE):
            assert isinstance(each, ast.ImportFrom)
            names = _executed(source, stand_ins, done)
            module.__dict__.update({alias.name: names[alias.name] for alias in each.names})
        elif "triton" not in source and not (isinstance(each, ast.Import) and "triton" in each.names[0].name):
            kept.append(each)
    tree.body = kept
    with mock.patch.dict("sys.modules", {name: module}):
        exec(compile(tree, name, "exec"), module.__dict__)
    done[name] = module.__dict__
    return module.__dict__


def _numbers(value: Any) -> Any:
    if isinstance(value, tuple):
        numbers = map(_numbers, value)
        return tuple(numbers) if type(value) is tuple else type(value)(*numbers)
    return _tensor(np.int64(value) if isinstance(value, int) else np.float32(value))


def _flat(array: Any) -> Any:
    """The memory of a tensor from its first element on."""
    array = array.detach().view(torch.uint8) if array.dtype == torch.bool else array.detach()
    elements = array.untyped_storage().nbytes() // array.element_size() - array.storage_offset()
    return torch.as_strided(array, (elements,), (1,)).numpy()


def functions_on_cpu(module: str, program: int = 0, programs: int = 1) -> dict[str, Any]:
    """The names of a module of Hopper's kernels; its functions take numbers and tuples of numbers."""
    return _executed(module, _stand_ins(program, programs), {})


@contextmanager
def hopper_on_cpu() -> Iterator[list[str]]:
    """Have Hopper's kernels chosen and executed here; gives the names of those that were, in order."""
    ran: list[str] = []
    begin = HopperCall.__init__

    def remember(
        self: Any, function: Any, tiling: Any, arrays: Any, scalars: Any, numbers: Any, programs: int, **options: Any
    ) -> None:
        begin(self, function, tiling, arrays, scalars, numbers, programs, **options)
        self.recorded = getattr(function, "fn", function), tiling, tuple(arrays.values()), scalars, numbers, programs

    def execute(self: Any, memory: Any, device: int, *arrays: Any) -> bool:
        function, tiling, described, scalars, numbers, programs = self.recorded
        given: list[Any] = []
        for array, seen in zip(arrays, described, strict=True):
            assert (array is None) == (seen is None)
            if array is None:
                given.append(None)
            elif seen.box:
                given.append(_Descriptor(_flat(array), seen.shape, seen.strides, seen.box))
            else:
                given.append(_Pointer(_flat(array)))
        for program in range(programs):
            names = _executed(function.__module__, _stand_ins(program, programs), {})
            names[function.__name__](*given, *map(_numbers, scalars.values()), _numbers(numbers), tiling)
        ran.append(function.__name__)
        return True

    with (
        mock.patch.object(HopperCall, "__init__", remember),
        mock.patch.object(HopperCall, "__call__", execute),
        mock.patch.object(hopper_plan, "interpreted", return_value=False),
        mock.patch.object(hopper_decode_plan, "interpreted", return_value=False),
    ):
        yield ran


def by_threads_on_cpu(tiling: Any, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Execute the contraction kernel by threads here, program by program."""
    given = [_Pointer(_flat(array)) for array in (left, right, left, out, out)]
    programs, parts, _ = tiling.grid
    for program in range(programs):
        for part in range(parts):
            stand_ins = {**vars(fma_contraction), **_stand_ins(program, programs, part)}
            names = _executed(fma_contraction.__name__, stand_ins, {})
            names["fma_kernel"](*given, tiling, np.float32, False)


@contextmanager
def boxes_on_cpu(programs: int) -> Iterator[None]:
    """Have contraction kernels with boxes chosen, and executed here by so many programs."""

    def execute(
        self: BoxKernel, memory: Any, device: int, operands: Sequence[Any], bias: Any, out: Any, before: Any
    ) -> None:
        tiling = self.tiling
        views = [tiling.left, tiling.right, tiling.out_piece, tiling.out_piece]
        views += [tiling.right_rest, tiling.out_rest, tiling.out_rest]
        arrays = [_flat(each) for each in (*operands, out, before, operands[1], out, before)]
        given = [
            _Descriptor(array, [dim.size for dim in view.dims], [dim.stride for dim in view.dims], view.block)
            for array, view in zip(arrays, views, strict=True)
        ]
        for program in range(min(programs, tiling.total)):
            stand_ins, done = _stand_ins(program, min(programs, tiling.total)), {}
            _executed("einops_fast.backends.triton.epilogue", stand_ins, done)["_features"] = _features
            names = _executed("einops_fast.backends.triton.tma_contraction", stand_ins, done)
            names["box_kernel"](*given, None if bias is None else _Pointer(_flat(bias)), tiling)

    with (
        mock.patch.object(BoxKernel, "launch", execute),
        mock.patch.object(candidates, "copies_boxes", return_value=True),
    ):
        yield


def _features(epilogue: Any, dtype: Any) -> Any:
    return SimpleNamespace(kind=epilogue.activation, digits=11 if dtype.itemsize == 2 else 24)


@contextmanager
def rows_on_cpu() -> Iterator[None]:
    """Have kernels with rings or for clusters chosen, and executed here."""
    call = KernelCall.__call__

    def execute(self: KernelCall, memory: Any, device: int, *arrays: Any) -> None:
        function = self.function.fn
        if not any(each in function.__module__ for each in (".ring_", ".cluster_")):
            call(self, memory, device, *arrays)
            return
        given = [None if array is None else _Pointer(_flat(array)) for array in arrays]
        for program in range(self.grid[0]):
            names = _executed(function.__module__, _stand_ins(program, self.grid[0]), {})
            names[function.__name__](*given, *_numbers(self.tail), **self.constants)

    with (
        mock.patch.object(KernelCall, "__call__", execute),
        mock.patch.object(ring_tilings, "interpreted", return_value=False),
        mock.patch.object(cluster_tilings, "interpreted", return_value=False),
    ):
        yield
