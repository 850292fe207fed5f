"""Which GPUs there are paths for, by compute capability: what the code asks and the documents show."""

from __future__ import annotations

from typing import NamedTuple

Capability = tuple[int, int]


class Span(NamedTuple):
    """Compute capabilities from one on, and below another."""

    least: Capability
    below: Capability = (100, 0)

    def has(self, capability: Capability) -> bool:
        """Return whether a device of this compute capability is one of these."""
        return self.least <= capability < self.below


GENERATIONS: tuple[Capability, ...] = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
"""Those that documents tell of: A100, A10, L4 and L40, H100 and H200, B200, and GeForce RTX 5090."""

KERNELS = Span((8, 0))
"""Kernels of our own: older ones have no bfloat16, and no copies into shared memory that go on beside."""

EARLY = Span((9, 0))
"""A kernel may begin while the one before it ends."""

HOPPER = Span((9, 0), (10, 0))
"""Products by groups of four warps, and boxes that the hardware copies; later ones multiply in another way."""

CLUSTERS = Span((9, 0), (12, 0))
"""Programs share a row in their shared memory, of which they have 227 KiB each."""

PATHS = {
    "contractions by pointers, by threads, in loops and of chains": KERNELS,
    "contractions in boxes": HOPPER,
    "the second of two kernels begins while the first ends": EARLY,
    "softmax, norms, losses and activations": KERNELS,
    "long rows by clusters": CLUSTERS,
    "attention: general, short and with few queries": KERNELS,
    "attention by groups of warps, with few queries, too": HOPPER,
}
"""List the features of GPUs that kernels need, and the generations that have each."""


def shared_memory(capability: Capability) -> int:
    """Return the bytes that a program may have on a GPU of this compute capability."""
    if CLUSTERS.has(capability):
        return 227 << 10
    return (163 if capability in ((8, 0), (8, 7)) else 99) << 10
