"""`Einsum`: a layer that is an equation of its input and a weight."""

from __future__ import annotations

from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from einops_fast.attention.options import count
from einops_fast.einsum import fast_einsum
from einops_fast.errors import EinsumError, ShapeError, SubscriptsError
from einops_fast.planning.compositions import Composition, composed


class Einsum(nn.Module):
    """:func:`einops_fast.fast_einsum` of an input and a learned weight, and a bias that is added.

    The weight, and the bias, begin as those of :class:`torch.nn.Linear` with as many inputs as the weight has elements
    along axes that the result lacks: uniform up to ``inputs ** -0.5``.

    Args:
        equation: ``'<input>, <weight> -> <result>'`` as for the function. Without any blanks in its terms, axes are
            letters.
        bias: the axes of the result, in its order, that the bias has; with ``True`` those that only the weight has.
        device, dtype: of the parameters.
        sizes: of axes, by name: of all that the weight and the bias have. Others are checked in each call.

    Raises:
        SubscriptsError: the equation or the axes of the bias aren't such.
        ShapeError: an axis of the weight or of the bias has no size.
        EinsumError: base of these; a size isn't one.

    Example:
        >>> import torch
        >>> from einops_fast.nn import Einsum
        >>> project = Einsum('b i d, d (h e) -> b h i e', bias=True, d=32, h=4, e=8)
        >>> {name: tuple(each.shape) for name, each in project.named_parameters()}
        {'weight': (32, 32), 'bias': (4, 1, 8)}
        >>> project(torch.zeros(2, 5, 32)).shape
        torch.Size([2, 4, 5, 8])
    """

    def __init__(
        self, equation: str, bias: bool | str = False, *, device: Any = None, dtype: Any = None, **sizes: int
    ) -> None:
        super().__init__()
        self.equation, self.sizes, self.bias_axes = equation, sizes, bias
        text = _spaced(equation)
        terms, arrow, _ = text.partition("->")
        if not arrow or terms.count(",") != 1:
            raise SubscriptsError(f"an equation of a layer is '<input>, <weight> -> <result>', not {equation!r}")
        read = composed(text)
        letters = {name: letter for letter, name in read.names.items()}
        for name in sizes.keys() - letters.keys():
            raise EinsumError(f"{equation!r} has no axis {name!r}, for which a size is given")
        what = "a whole number, 0 or more"
        known = {letters[name]: count(f"the size of {name!r}", size, what, 0) for name, size in sizes.items()}
        shape = [_size(read, axis, known, "weight") for axis in read.inputs[1]]
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = None
        if bias:
            axes = _bias_axes(read, f"{terms}->{_spaced(bias)}" if isinstance(bias, str) else None)
            behind = read.output[read.output.index(axes[0]) :]
            shape = [_size(read, axis, known, "bias") if axis in axes else 1 for axis in behind]
            self.bias = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        summed = {*"".join(read.inputs[1])} - {*"".join(read.output)}
        self._bound = max(1, prod([known[letter] for letter in summed])) ** -0.5
        # The weight has these sizes: axes that are called as an argument of the function, such as `out`, do without.
        self._told: dict[str, Any] = {
            name: size for name, size in sizes.items() if name not in signature(fast_einsum).parameters
        }
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw them anew."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -self._bound, self._bound)

    def forward(self, input: Tensor) -> Tensor:
        """The result for an input as the equation has it."""
        found: Tensor = fast_einsum(self.equation, input, self.weight, **self._told)
        return found if self.bias is None else found + self.bias

    def extra_repr(self) -> str:
        """The arguments."""
        bias = f"bias={self.bias_axes!r}, " if self.bias_axes else ""
        return f"{self.equation!r}, {bias}{', '.join([f'{name}={size}' for name, size in self.sizes.items()])}"


def _spaced(text: Any) -> str:
    """An equation, or a term, with blanks between the names of axes, also if these are letters."""
    if not isinstance(text, str):
        raise SubscriptsError(f"an equation is text, not of type {type(text).__name__}")
    terms = [term.strip() for term in text.replace("->", ",").split(",")]
    if any(" " in term or "(" in term for term in terms):
        return text
    return "".join([f" {character} " if character.isalpha() else character for character in text])


def _size(read: Composition, axis: str, sizes: dict[str, int], of: str) -> int:
    if "..." in axis:
        raise SubscriptsError(f"the {of} of {read.text!r} can't have an ellipsis: its axes have sizes by name")
    unknown = [read.names[letter] for letter in axis if letter not in sizes]
    if unknown:
        raise ShapeError(f"axis {unknown[0]!r} of the {of} in {read.text!r} has no size: give {unknown[0]}=…")
    return prod([sizes[letter] for letter in axis])


def _bias_axes(read: Composition, told: str | None) -> tuple[str, ...]:
    """The axes of the result that the bias has; ``told`` is an equation whose result they are."""
    if told is None:
        others = {*"".join(read.inputs[0])}
        axes = tuple([axis for axis in read.output if axis and axis != "..." and others.isdisjoint(axis)])
    else:
        axes = composed(told).output
    if not axes or tuple([axis for axis in read.output if axis in axes]) != axes:
        raise SubscriptsError(
            f"the bias of {read.text!r} has axes of the result, in its order, with True those that only the weight has"
            + ("" if told is None else f"; not {told.rpartition('->')[2].strip()!r}")
        )
    return axes
