"""How kernels are compiled: for what types, and what is changed of them on their way through LLVM and ptxas.

**Descriptors.** Warp groups multiply tiles in shared memory by way of descriptors: a tile's address with constants for
its layout. Where a kernel has tiles of two layouts at one address, one after the other, and the address is known before
a loop, ptxas 12.8, which comes with Triton, may add these constants to registers that nothing has written (13.0
doesn't). Such tiles are those that can't be copied ahead of time, since they begin at odd places. The products are made
of whatever is elsewhere in shared memory then, or the kernel is stopped for reading beyond it.

So of each layout's descriptors at such an address, the first is made as before, and the others by adding to the first.

**Shifts.** LLVM turns pairs of like computations into one of vectors. Where one is ``x & 31`` and the other ``y << 3``,
it shifts both, by 31 and by 3, promises that neither overflows, and takes the second of the results and leaves the
first. The LLVM of Triton 3.6 then keeps the pair in 64 bits, and believes the promise: what overflows is mixed into the
second number, such as an offset in memory. So no promises are made about shifts of vectors.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock, RLock
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.compiler import ASTSource, CompiledKernel
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver
from triton.runtime.jit import DependenciesFinder

from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

_Path = tuple[int, ...]
"""Where an argument is: its number, then places in tuples."""

ONES = frozenset({"1"})
"""For :func:`signature`: the compiler is told where a number is 1, and of others nothing."""

_INT32 = range(-(1 << 31), 1 << 31)


class Signature(NamedTuple):
    """What a kernel is compiled for: types as Triton spells them, constants, and what is a multiple of 16."""

    types: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[_Path, Any], ...]
    aligned: tuple[_Path, ...]


def signature(
    function: Any, arguments: tuple[Any, ...], constants: tuple[Any, ...], even: Collection[str] | None
) -> Signature:
    """Return what a kernel is compiled for: an :class:`Array`, ``None``, a number, or a tuple of such, and constants.

    ``even`` are fields of tuples that the compiler is told to be multiples of 16 where they are; of other numbers it's
    told nothing. If ``None``, it's told as much as Triton's launcher does: 1 is a constant, and so on, but for
    arguments that the kernel excludes (``do_not_specialize``). If :data:`ONES`, of that only that 1 is a constant.
    """
    ones = even is None or even is ONES
    types: list[Any] = []
    known: list[tuple[_Path, Any]] = []
    aligned: list[_Path] = []

    def typed(value: Any, path: _Path, name: str, special: bool) -> Any:
        if isinstance(value, Array):
            if value.aligned and not value.box:
                aligned.append(path)
            return value.type
        if isinstance(value, tuple):
            names = getattr(value, "_fields", ("",) * len(value))
            inner = [
                typed(each, (*path, at), named, special)
                for at, (each, named) in enumerate(zip(value, names, strict=True))
            ]
            return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
        if value is None or (special and type(value) is int and value == 1):
            known.append((path, value))
            return "constexpr"
        if isinstance(value, bool):
            return "u1"
        if isinstance(value, float):
            return "fp32"
        if (special if even is None else name in even) and value % ALIGNMENT == 0:
            aligned.append(path)
        return "i32" if value in _INT32 else "i64"

    for at, (value, parameter) in enumerate(zip(arguments, function.params, strict=False)):
        types.append(typed(value, (at,), parameter.name, ones and not parameter.do_not_specialize))
    for value in constants:
        known.append(((len(types),), value))
        types.append("constexpr")
    return Signature(tuple(zip(function.arg_names, types, strict=True)), tuple(known), tuple(aligned))


_naming = RLock()


def _update_hash(finder: DependenciesFinder, callee: Any) -> None:
    """Do what Triton does where a function calls another one, when that has its key."""
    _ = callee.cache_key
    _triton_update_hash(finder, callee)


_triton_update_hash = DependenciesFinder._update_hash


def named(function: Any) -> Any:
    """Have Triton give a kernel its key, the same one in every process; return the kernel.

    By itself, Triton adds the constants of what a kernel calls to the key where that was called before, by another
    kernel. Then a process doesn't find what another one has compiled.
    """
    if function.hash is None:
        with _naming:
            DependenciesFinder._update_hash = _update_hash
            try:
                _ = function.cache_key
            finally:
                DependenciesFinder._update_hash = _triton_update_hash
    return function


def compiled_for(function: Any, given: Signature, options: tuple[tuple[str, Any], ...]) -> Any:
    """Compile a kernel for the current device, or take it from those compiled before, here or in Triton's own cache."""
    key = named(function), given, options, *_here()
    found = _compiled.get(key)
    if found is None:
        found = _compile(function, given, options)
        keep(_compiled, key, found)
    return found


def is_compiled(function: Any, given: Signature, options: tuple[tuple[str, Any], ...]) -> bool:
    """Return whether a kernel is loaded on the current device."""
    return (named(function), given, options, *_here()) in _compiled


def _here() -> tuple[int, Any]:
    """Return the current device, and what kernels are compiled for there."""
    return driver.active.get_current_device(), driver.active.get_current_target()


_compiled: dict[Any, Any] = {}


def _compile(function: Any, given: Signature, options: tuple[tuple[str, Any], ...]) -> Any:
    written_in = GluonASTSource if function.is_gluon() else ASTSource
    hints = {path: [["tt.divisibility", ALIGNMENT]] for path in given.aligned}
    source = written_in(function, dict(given.types), dict(given.constants), hints)
    target = driver.active.get_current_target()
    compiled = _made_elsewhere(source, (function, given, options, target.arch))
    if compiled is None:
        with compiling():
            compiled = triton.compile(source, target=target, options=dict(options))
    _ = compiled.run  # loads it on the device, which may fail
    return compiled


Files = tuple[str, dict[str, str]]
"""Triton's key of a compiled kernel, and the paths of its files by name."""

elsewhere: dict[tuple[Any, ...], Files] = emptied_with_plans({})
"""Kernels that other processes have compiled, by function, signature, options and architecture."""


def _made_elsewhere(source: Any, key: tuple[Any, ...]) -> Any:
    """Return a kernel that another process has compiled; ``None`` if none has.

    Triton's own cache may not find it: in the midst of a program, inductor changes the cache's folder and the ptxas,
    whose version is a part of the key.
    """
    if key in elsewhere:
        name, files = elsewhere[key]
        with suppress(OSError, KeyError, StopIteration, ValueError):  # somebody has removed the files, say
            return CompiledKernel(source, files, name)
    return None


_KEY = "-untangled-unpromised"
"""What tells compiled kernels apart from those that Triton compiles otherwise."""

_PLACE = re.compile(r"\tbfe\.u32 \t(%r\d+), %r\d+, 4, 14;")
"""An address in shared memory as descriptors have it: in units of 16 bytes, 14 bits long."""

_WIDE = re.compile(r"\tcvt\.u64\.u32 \t(%rd\d+), (%r\d+);")

_DESCRIPTOR = re.compile(r"\t(or\.b64|add\.s64) \t(%rd\d+), (%rd\d+), (-?\d+);")

_WRITTEN = re.compile(r"\t(?:@!?%p\d+ )?[a-z][\w.:]* +\t?(%rd?\d+),")

_BLOCK = re.compile(r"\$L__BB\w+:")

_PROMISES = re.compile(r"\bshl (?:nuw |nsw )+(?=<)")


def unpromised(llvm: str) -> str:
    """The same program, for LLVM, without promises that shifts of vectors don't overflow."""
    return _PROMISES.sub("shl ", llvm)


def _mixed(ptx: str) -> set[str]:
    """Registers with addresses of which descriptors of several layouts are made; each is written once."""
    lines = ptx.split("\n")
    written = Counter(match[1] for line in lines if (match := _WRITTEN.match(line)))
    places = set(_PLACE.findall(ptx))
    wide = {register for register, place in _WIDE.findall(ptx) if place in places and written[place] == 1}
    layouts: dict[str, set[int]] = defaultdict(set)
    for _, _, place, constant in _DESCRIPTOR.findall(ptx):
        layouts[place].add(_layout(constant))
    return {place for place in wide if written[place] == 1 and len(layouts[place]) > 1}


def untangled(ptx: str) -> str:
    """The same program, in which a layout's further descriptors at a mixed address are made of the first."""
    places = _mixed(ptx)
    if not places:
        return ptx
    lines = ptx.split("\n")
    first: dict[tuple[str, int], tuple[str, int]] = {}
    for number, line in enumerate(lines):
        if _BLOCK.match(line):
            # What is written in one block needn't be known in another.
            first.clear()
        match = _DESCRIPTOR.match(line)
        if match is None or match[3] not in places:
            continue
        operation, register, place, constant = match.groups()
        kind = place, _layout(constant)
        if kind not in first:
            # An address has 14 bits: to combine it with a constant without these is to add it.
            if operation == "add.s64" or int(constant) % (1 << 14) == 0:
                first[kind] = register, int(constant)
        elif operation == "add.s64":
            other, its = first[kind]
            lines[number] = f"\tadd.s64 \t{register}, {other}, {int(constant) - its};"
    return "\n".join(lines)


def _layout(constant: str) -> int:
    """What a descriptor says of a tile's layout: the upper half."""
    return int(constant) >> 32


_lock = Lock()
_users = 0
_other: Any = None


@contextmanager
def compiling() -> Iterator[None]:
    """While this is open, what Triton compiles is :func:`unpromised` and :func:`untangled`, in all threads."""
    global _users, _other
    with _lock:
        if not _users:
            _other, knobs.runtime.add_stages_inspection_hook = knobs.runtime.add_stages_inspection_hook, _stages
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                knobs.runtime.add_stages_inspection_hook, _other = _other, None


def _stages(*given: Any) -> tuple[str, str] | None:
    """What Triton calls with the stages of a compilation; from 3.7 on also for what to add to a kernel's key."""
    other = _other
    if not given:
        key, digest = ("", "") if other is None else other()
        return key + _KEY, digest + _KEY
    if other is not None:
        other(*given)
    stages = given[1]
    for stage, change in (("llir", unpromised), ("ptx", untangled)):
        if stage in stages:
            stages[stage] = partial(_changed, change, stages[stage])
    return None


def _changed(change: Callable[[str], str], make: Callable[[Any, Any], str], source: Any, metadata: Any) -> str:
    """What a stage makes of a program, with what is changed of it."""
    return change(make(source, metadata))
