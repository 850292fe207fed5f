"""Kernels that are compiled as they say: what is changed of them on their way through LLVM and ptxas.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

from triton import knobs

__all__ = ["compiling", "unpromised", "untangled"]

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
