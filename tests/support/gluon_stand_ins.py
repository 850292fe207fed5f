"""What kernels find in place of Gluon where they are executed by NumPy and threads: see :mod:`gluon_on_cpu`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from einops_fast.backends.triton.device import generic

_SECONDS = 60
"""After which waiting is a deadlock."""


class Tensor(np.ndarray):
    """An array as kernels see it, numbers included."""

    def to(self, dtype: Any, bitcast: bool = False) -> Tensor:
        return tensor(np.asarray(self).view(dtype) if bitcast else np.asarray(self).astype(dtype))

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def permute(self, axes: Sequence[int]) -> Tensor:
        return tensor(np.asarray(self).transpose(axes))

    def __array_wrap__(self, array: Any, *_: Any) -> Tensor:  # type: ignore[override]
        return tensor(array)

    def __iadd__(self, other: Any) -> Any:  # type: ignore[override, misc]
        # A value, which may have other names.
        return self + other

    def __getitem__(self, at: Any) -> Tensor:
        return tensor(np.asarray(self)[at])


def tensor(value: Any) -> Tensor:
    return np.asarray(value).view(Tensor)


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

    def load(self, layout: Any) -> Tensor:
        return tensor(self.array.copy())

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


class Descriptor:
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


class Pointer:
    def __init__(self, memory: Any, offsets: Any = 0) -> None:
        self.memory, self.offsets = memory, offsets

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.offsets + more)

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)


def _copy_in(array: Descriptor, place: Sequence[Any], barrier: _Barrier, into: _Shared, pred: Any = True) -> None:
    if not pred:
        return
    there, here = array.inside(place)
    into.array[...] = 0
    into.array[here] = array.array[there]
    barrier.add(size=-array.block_type.nbytes)


def _copy_out(array: Descriptor, place: Sequence[Any], of: _Shared) -> None:
    there, here = array.inside(place)
    array.array[there] = of.array[here]


def _added(pointer: Pointer, value: int, **_: Any) -> Tensor:
    """Add to one number, and give what it was. Programs run one after the other."""
    place = int(pointer.offsets)
    before = pointer.memory[place].copy()
    pointer.memory[place] += value
    return tensor(before)


def _load(
    pointer: Pointer, mask: Any = True, other: Any = 0, volatile: bool = False, eviction_policy: str = ""
) -> Tensor:
    offsets = np.asarray(pointer.offsets)
    mask = np.broadcast_to(np.asarray(mask), offsets.shape)
    found = pointer.memory[np.where(mask, offsets, 0)]
    return tensor(np.where(mask, found, np.asarray(other, found.dtype)))


def _store(pointer: Pointer, value: Any, mask: Any = True) -> None:
    offsets = np.asarray(pointer.offsets)
    mask = np.broadcast_to(np.asarray(mask), offsets.shape)
    pointer.memory[offsets[mask]] = np.asarray(value)[mask]


def _reduce(values: tuple[Any, ...], axis: int, function: Any) -> tuple[Any, ...]:
    columns = np.asarray(values[0]).shape[axis]
    found = tuple(np.take(np.asarray(each), 0, axis) for each in values)
    for at in range(1, columns):
        found = function(*found, *(np.take(np.asarray(each), at, axis) for each in values))
    return tuple(map(tensor, found))


def _words(value: Any) -> Any:
    return np.asarray(value).astype(np.uint64)


def _low_sum(left: Any, right: int, sanitize_overflow: bool) -> Tensor:
    return tensor((_words(left) + np.uint64(right)).astype(np.uint32))


class _Notes:
    """What parts of a row have told each other: pairs of numbers for a step; not a number until they are told.

    A program is a whole cluster here, so that all is told and heard in one place, and only the order is checked: what
    is told in a step is heard before something is told in the next one.
    """

    def __init__(self) -> None:
        self._met = False
        self._heard = self._told = -1
        self._values: tuple[Tensor, Tensor] | None = None

    def meet(self, notes: Any) -> None:
        self._met = True

    def tell(self, notes: Any, step: Any, number: Any, first: Any, second: Any, tiling: Any) -> None:
        assert self._met
        assert len(number) == tiling.parts
        assert self._heard == self._told == int(step) - 1
        self._told, self._values = int(step), (tensor(first), tensor(second))

    def heard(self, notes: Any, step: Any, tiling: Any) -> Any:
        assert self._told == int(step), "deadlock"
        self._heard = int(step)
        nothing = tensor(np.full(tiling.parts, np.nan, np.float32))
        return self._values or (nothing, nothing)


class _Copies:
    """Copies to shared memory, which arrive when they are waited for, and not before."""

    def __init__(self) -> None:
        self._group: list[tuple[Any, Any]] = []
        self._groups: list[list[tuple[Any, Any]]] = []

    def copy(self, into: _Shared, pointer: Pointer, mask: Any = True) -> None:
        into.array[...] = np.nan
        self._group.append((into.array, _load(pointer, mask)))

    def commit(self) -> None:
        self._groups.append(self._group)
        self._group = []

    def wait(self, pending: int) -> None:
        while len(self._groups) > pending:
            for into, value in self._groups.pop(0):
                into[...] = value


def _product(left: Any, right: _Shared, sums: Any, use_acc: bool = True, is_async: bool = False) -> Tensor:
    left = left.array if isinstance(left, _Shared) else np.asarray(left)
    product = left.astype(np.float32) @ right.array.astype(np.float32)
    return tensor(product + np.asarray(sums) if use_acc else product)


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


def stand_ins(program: int, programs: int, part: int = 0) -> dict[str, Any]:
    """What the kernels find in place of Gluon; ``part`` is the program's number along the second axis of the grid."""

    def tensors(function: Any) -> Any:
        return lambda *arguments: tensor(function(*map(np.asarray, arguments)))

    gl = SimpleNamespace(
        constexpr=lambda value: value, float16=np.float16, float32=np.float32, float64=np.float64, int32=np.int32,
        int64=np.int64, int1=np.bool_, uint16=np.uint16, uint32=np.uint32, uint64=np.uint64, static_range=range,
        warp_specialize=_side_by_side,
        program_id=lambda axis: tensor(part if axis else program), num_programs=lambda axis: tensor(programs),
        allocate_shared_memory=_memory, load=_load, store=_store,
        convert_layout=lambda value, layout, assert_trivial=False: value,
        reshape=lambda value, shape: tensor(np.asarray(value).reshape(shape)), thread_barrier=_nothing,
        arange=lambda start, end, layout: tensor(np.arange(start, end)),
        zeros=lambda shape, dtype, layout: tensor(np.zeros(shape, dtype)),
        full=lambda shape, value, dtype, layout: tensor(np.full(shape, value, dtype)),
        max=lambda value, axis: tensor(np.asarray(value).max(axis)),
        sum=lambda value, axis: tensor(np.asarray(value).sum(axis)),
        min=lambda value, axis: tensor(np.asarray(value).min(axis)),
        zeros_like=tensors(np.zeros_like), where=tensors(np.where), maximum=tensors(np.maximum),
        minimum=tensors(np.minimum), exp2=tensors(np.exp2), log2=tensors(np.log2), log=tensors(np.log),
        sqrt=tensors(np.sqrt), exp=tensors(np.exp), div_rn=tensors(np.divide), to_tensor=tensor,
        cast=lambda value, dtype: tensor(value).to(dtype), reduce=_reduce,
        add=_low_sum,
        atomic_add=_added, permute=lambda value, axes: tensor(np.asarray(value).transpose(axes)),
        associative_scan=lambda value, axis, add: tensor(np.cumsum(value, axis)),
        fma=tensors(lambda a, b, c: a * b + c), split=lambda value: (value[..., 0], value[..., 1]),
        join=lambda first, second: tensor(np.stack([first, second], -1)),
        BlockedLayout=_nothing, DotOperandLayout=_nothing, NVMMADistributedLayout=_nothing, SliceLayout=_nothing,
        SwizzledSharedLayout=_nothing, NVMMASharedLayout=SimpleNamespace(get_default_for=_nothing),
    )  # fmt: skip
    tl = SimpleNamespace(**vars(gl))
    tl.full = lambda shape, value, dtype: tensor(np.full(shape, value, dtype))
    tl.abs = tensors(np.abs)
    interpreted = SimpleNamespace(runtime=SimpleNamespace(interpret=True))
    copies, notes = _Copies(), _Notes()
    functions = SimpleNamespace(jit=_as_it_is, constexpr_function=_as_it_is)
    return {
        "Nest": generic.Nest,
        "Number": generic.Number,
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
            expect=lambda barrier, size, pred=True: barrier.add(1, int(size)) if pred else None,
            arrive=lambda barrier, pred=True: barrier.add(1) if pred else None,
            wait=_Barrier.wait,
            MBarrierLayout=lambda: "barriers",
        ),
        "warpgroup_mma": _product,
        "warpgroup_mma_wait": lambda pendings, deps: deps[0] if len(deps) == 1 else tuple(deps),
        "fence_async_shared": _nothing,
        "take_turn": _nothing,
        "barrier": _nothing,
        "again": lambda value: value,
        "notes_here": lambda tiling: tensor(0),
        "meet": notes.meet,
        "tell": notes.tell,
        "heard": notes.heard,
        "field": getattr,
        "RowFeatures": import_module("einops_fast.backends.triton.rows.rows").RowFeatures,
        "min": lambda *each: tensor(min(map(int, each))),
        "range": lambda *ends: (tensor(at) for at in range(*map(int, ends))),
    }
