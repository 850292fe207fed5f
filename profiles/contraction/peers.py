"""What else contracts the same arrays: the native einsum, opt_einsum, torch.compile, CuPy and cuTENSOR.

CuPy's and cuTENSOR's arrays are torch's own memory, wrapped through DLPack, and their work is on the same stream:
one clock sees it all.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.reporting.records import Note, Record, skipped
from einops_fast.profiles.timing.limits import limited
from einops_fast.profiles.ways import Call, Way, available

__all__ = ["NATIVE", "PEERS", "Compiler", "Peer", "make_ways", "present"]

NATIVE = "native"

COMPILE_SECONDS = 40.0
"""The longest that the compilation of one case may take."""

ALL_COMPILE_SECONDS = 300.0
"""The longest that all of them may take together, in one process."""


@dataclass(frozen=True)
class Peer:
    """One that ours is measured against.

    Attributes:
        name: for ``--peers``, and for its column.
        way: how it computes a case of a dtype; raises :class:`Unavailable` for what it isn't made for.
        version: of what isn't told with the framework's own.
    """

    name: str
    way: Callable[[Case, str], Way]
    version: str = ""


def present(framework: Framework, names: Sequence[str] = ()) -> tuple[list[Peer], list[Record]]:
    """The peers that run here, the native einsum first; and what to know about them, and why others don't.

    Args:
        framework: whose arrays are contracted.
        names: of :data:`PEERS`; default: all on a GPU, on a CPU those that need no compiler.
    """
    wanted = names or (tuple(PEERS) if framework.device == "gpu" else (NATIVE, "opt_einsum"))
    peers: list[Peer] = []
    told: list[Record] = []
    for name, make in PEERS.items():
        if name not in wanted and name != NATIVE:
            continue
        try:
            peers.append(make(framework))
        except Unavailable as missing:
            told.append(skipped(framework.name, name, str(missing), details=traceback.format_exc()))
    told += [Note(f"{framework.name} is measured beside {peer.version}") for peer in peers if peer.version]
    return peers, told


def make_ways(peers: Iterable[Peer], case: Case, dtype: str) -> list[Way]:
    """A way for each peer that is made for the case."""
    return available(partial(peer.way, case, dtype) for peer in peers)


def _native(framework: Framework) -> Peer:
    # NumPy's plain einsum never calls BLAS; what ours has to beat is the one that does.
    options = {"optimize": True} if framework.name == "numpy" else {}

    def way(case: Case, dtype: str) -> Way:
        return Way(NATIVE, partial(framework.einsum, case.called, **options), framework)

    return Peer(NATIVE, way)


def _opt_einsum(framework: Framework) -> Peer:
    if framework.name == "mxnet":
        raise Unavailable("opt_einsum has no backend for it")
    from opt_einsum import contract

    return Peer("opt_einsum", lambda case, dtype: Way("opt_einsum", partial(contract, case.called), framework))


class Compiler:
    """torch.compile within a limit of time, for one case and for all together."""

    def __init__(self, torch: Any, seconds: float = COMPILE_SECONDS, altogether: float = ALL_COMPILE_SECONDS) -> None:
        self._torch = torch
        self._seconds = seconds
        self._left = altogether

    def way(self, framework: Framework, case: Case) -> Way:
        """The native einsum of a case, compiled before its first call and kept for the others."""
        kept: list[Call] = []

        def prepare(call: Callable[..., Any], *operands: Any) -> Call:
            if not kept:
                kept.append(self.compiled(call, operands, case.name))
            return partial(kept[0], *operands)

        torch, equation = self._torch, case.called
        return Way("compile", lambda *operands: torch.einsum(equation, *operands), framework, prepare=prepare)

    def compiled(
        self, call: Callable[..., Any], operands: Sequence[Any], name: str, *, fullgraph: bool = True
    ) -> Callable[..., Any]:
        """The function compiled, by a first call.

        Args:
            call: what to compile.
            operands: of the first call.
            name: of what it computes, for messages.
            fullgraph: fail where something isn't compiled.

        Raises:
            TimeoutError: it took too long, or all before it have.
        """
        if self._left <= 0:
            raise TimeoutError("the time for compilations is used up")
        # Equations are variants of one function to Dynamo, which after a few of them gives up.
        self._torch.compiler.reset()
        compiled: Callable[..., Any] = self._torch.compile(call, fullgraph=fullgraph, dynamic=False)
        start = perf_counter()
        try:
            # What is begun gets a second at least.
            with limited(max(1.0, min(self._seconds, self._left)), f"compiling {name}"):
                compiled(*operands)
        finally:
            self._left -= perf_counter() - start
        return compiled


def _compile(framework: Framework) -> Peer:
    if framework.name != "torch":
        raise Unavailable("torch.compile takes torch tensors")
    compiler = Compiler(import_module("torch"))
    return Peer("compile", lambda case, dtype: compiler.way(framework, case))


def _cupy(framework: Framework) -> Peer:
    if framework.name != "torch":
        raise Unavailable("cupy.einsum is measured on torch tensors")
    cupy = _import_cupy(framework)

    def way(case: Case, dtype: str) -> Way:
        return _wrapped("cupy", partial(cupy.einsum, case.called), framework, cupy, dtype)

    return Peer("cupy", way, version=f"CuPy {cupy.__version__}")


def _cutensor(framework: Framework) -> Peer:
    if framework.name != "torch":
        raise Unavailable("cuTENSOR is measured on torch tensors")
    cupy = _import_cupy(framework)
    try:
        cutensor = import_module("cupyx.cutensor")
        # The library itself may be looked for, and missed, at the first call only.
        one = cupy.ones((1, 1), "float32")
        cutensor.contraction(1.0, one, "ij", one, "jk", 0.0, cupy.empty((1, 1), "float32"), "ik")
    except Exception as error:
        raise Unavailable(f"cuTENSOR can't be used: {error}".split("\n")[0]) from None

    def way(case: Case, dtype: str) -> Way:
        if len(case.inputs) != 2:
            raise Unavailable("a contraction has two operands")

        def call(left: Any, right: Any) -> Any:
            result = cupy.empty(case.result_shape, left.dtype)
            return cutensor.contraction(1.0, left, case.inputs[0], right, case.inputs[1], 0.0, result, case.output)

        return _wrapped("cutensor", call, framework, cupy, dtype)

    return Peer("cutensor", way)


def _import_cupy(framework: Framework) -> Any:
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


def _wrapped(name: str, call: Callable[..., Any], framework: Framework, cupy: Any, dtype: str) -> Way:
    """A way on CuPy arrays in the memory of torch tensors."""
    if dtype == "bfloat16":
        raise Unavailable("CuPy has no bfloat16")

    def prepare(call: Callable[..., Any], *operands: Any) -> Call:
        return partial(call, *map(cupy.from_dlpack, operands))

    return Way(name, call, framework, prepare=prepare, finish=import_module("torch").from_dlpack)


PEERS: dict[str, Callable[[Framework], Peer]] = {
    NATIVE: _native,
    "opt_einsum": _opt_einsum,
    "compile": _compile,
    "cupy": _cupy,
    "cutensor": _cutensor,
}
"""What makes each peer for a framework, or raises :class:`Unavailable`; by name, in the order of columns."""
