"""Arrays as kernels take them: by their address, or as boxes that the hardware copies (TMA descriptors)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.launching.launch import DTYPES, spelled


class Array(NamedTuple):
    """What is known of an array when a kernel that takes it is compiled.

    Shape, strides and box are in elements, for the hardware, which copies boxes: at most five axes; the last stride is
    1, the others are multiples of 16 bytes. Without a box, the kernel gets the address, a multiple of 16 if it is
    ``aligned``.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    aligned: bool = True

    @property
    def type(self) -> str:
        """The type as Triton's compiler spells it."""
        name = str(self.dtype).rpartition(".")[2]
        if not self.box:
            return "*" + spelled(name)
        box = list(self.box)
        layout = gl.NVMMASharedLayout.get_default_for(box, DTYPES[name])
        return f"tensordesc<{spelled(name)}{box},{layout!r}>"


class Descriptor:
    """An array at an address, as Triton's launcher describes it to the hardware."""

    padding = "zero"
    round_f32_to_tf32 = False

    def __init__(self, array: Array, address: int) -> None:
        self.shape, self.strides, self._address = list(array.shape), list(array.strides), address

    @property
    def base(self) -> Descriptor:
        """The object that Triton asks for the address."""
        return self

    def data_ptr(self) -> int:
        """Return the address."""
        return self._address


def mapped(get: Callable[[Any], Any], arrays: Any) -> Any:
    """Return what ``get`` makes of each array, in tuples where these are; ``None`` stays."""
    if isinstance(arrays, tuple) and not isinstance(arrays, Array):
        made = [mapped(get, array) for array in arrays]
        return type(arrays)(*made) if hasattr(arrays, "_fields") else tuple(made)
    return None if arrays is None else get(arrays)
