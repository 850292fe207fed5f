"""Queueing a kernel whose arrays the hardware copies: what it reads of an array is made once for each address.

Triton's launcher makes that (a tensor map) of every array at every launch, which takes the host as long as the rest.
All arguments of a launch are kept, too, for the next one whose arrays lie where they lay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from einops_fast.backends.triton.launching.bare_launch import keep, launch_of

if TYPE_CHECKING:
    from einops_fast.backends.triton.contraction.boxes.launch import Descriptor

__all__ = ["MappedLaunch"]


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
        self._programs, self._descriptors, self._rest = programs, tuple(descriptors), rest
        self._known: tuple[dict[int, Any], ...] = tuple({} for _ in descriptors)
        self._launch = launch_of(compiled)
        self._queue = self._launch.queue
        metadata = iter(compiled.metadata.tensordesc_meta or ()) if self._launch.bare else None
        self._metadata = [None if each is None or metadata is None else next(metadata) for each in descriptors]
        self._ready: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def again(self, stream: int, addresses: tuple[Any, ...]) -> bool:
        """Queue it if it was queued for these addresses before; whether it was."""
        arguments = self._ready.get(addresses)
        if arguments is None:
            return False
        self._queue(self._programs, 1, 1, stream, *arguments)
        return True

    def __call__(self, stream: int, addresses: tuple[Any, ...]) -> None:
        """Queue it; where the hardware copies, addresses are multiples of 16; that of no array is ``None``."""
        arguments: list[Any] = []
        for at, (descriptor, address) in enumerate(zip(self._descriptors, addresses, strict=True)):
            if descriptor is None:
                arguments.append(address)
            elif self._launch.bare:
                arguments += self._known[at].get(address) or self._mapped(at, address)
            else:
                arguments.append(descriptor.at(address))
        ready = keep(self._ready, addresses, self._launch.arguments((*arguments, *self._rest)))
        self._queue(self._programs, 1, 1, stream, *ready)

    def _mapped(self, at: int, address: int) -> Any:
        """A tensor map and what goes with it, as the launcher expands a descriptor."""
        from triton.backends.nvidia.driver import make_tensordesc_arg

        descriptor = self._descriptors[at]
        assert descriptor is not None
        return keep(self._known[at], address, make_tensordesc_arg(descriptor.at(address), self._metadata[at]))
