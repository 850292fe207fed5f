"""Queueing a kernel whose arrays the hardware copies: what it reads of an array is made once for each address.

Triton's launcher makes that (a tensor map) of every array at every launch, which takes the host as long as the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from einops_fast.backends.triton.tma_launch import Descriptor

__all__ = ["MappedLaunch"]

_MOST_ADDRESSES = 256
"""Of an array; then all are forgotten."""


class MappedLaunch:
    """Queues a kernel on a device.

    Args:
        compiled: the kernel, loaded there.
        programs: how many there are.
        descriptors: for each array what describes it to the hardware, or ``None`` where the kernel takes its address.
        rest: the arguments after the arrays.
    """

    def __init__(
        self, compiled: Any, programs: int, descriptors: Sequence[Descriptor | None], rest: tuple[Any, ...]
    ) -> None:
        self._compiled, self._programs, self._descriptors, self._rest = compiled, programs, tuple(descriptors), rest
        self._known: tuple[dict[int, Any], ...] = tuple({} for _ in descriptors)
        self._bare = _bare_launch(compiled)
        metadata = iter(compiled.metadata.tensordesc_meta or ()) if self._bare else None
        self._metadata = [None if each is None or metadata is None else next(metadata) for each in descriptors]

    def __call__(self, stream: int, addresses: Sequence[Any]) -> None:
        """Queue it; where the hardware copies, addresses are multiples of 16; that of no array is ``None``."""
        compiled, bare = self._compiled, self._bare
        arguments: list[Any] = []
        if bare is None:
            for descriptor, address in zip(self._descriptors, addresses, strict=True):
                arguments.append(address if descriptor is None else descriptor.at(address))
            compiled.run(
                self._programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
                *arguments, *self._rest,
            )  # fmt: skip
            return
        for at, address in enumerate(addresses):
            if self._descriptors[at] is None:
                arguments.append(address)
            else:
                arguments += self._known[at].get(address) or self._mapped(at, address)
        bare(
            self._programs, 1, 1, stream, compiled.function, False, False, None, None, compiled.packed_metadata,
            None, None, None, *arguments, *self._rest,
        )  # fmt: skip

    def _mapped(self, at: int, address: int) -> Any:
        """A tensor map and what goes with it, as the launcher expands a descriptor."""
        from triton.backends.nvidia.driver import make_tensordesc_arg

        known = self._known[at]
        if len(known) >= _MOST_ADDRESSES:
            known.clear()
        descriptor = self._descriptors[at]
        assert descriptor is not None
        known[address] = found = make_tensordesc_arg(descriptor.at(address), self._metadata[at])
        return found


def _bare_launch(compiled: Any) -> Callable[..., None] | None:
    """What Triton's launcher calls with expanded descriptors; ``None`` if this version of Triton is built otherwise."""
    launcher = compiled.run
    try:
        bare = inspect.getclosurevars(launcher.launch).nonlocals["launcher"]
        scratch = launcher.global_scratch_size or launcher.profile_scratch_size
        special = launcher.launch_cooperative_grid or launcher.launch_pdl
        expandable = callable(bare) and all(compiled.metadata.tensordesc_meta)
    except (AttributeError, KeyError, TypeError):
        return None
    return bare if expandable and not scratch and not special else None
