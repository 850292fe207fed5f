"""Programs whose lengths vary from call to call, as training and serving make them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from einops_fast.profiles.cases import AnyCase, Shape

LENGTH = -1  # Stands for the length in a shape
LONGEST_ON_CPU = 32  # Extents other than the length are no longer than this on a CPU


@dataclass(frozen=True)
class LengthsCase(AnyCase):
    """One operation at many lengths."""

    name: str  # what tables call it
    operation: str  # a name in `program.FUNCTIONS`
    shapes: tuple[Shape, ...]  # of the operands, with `LENGTH` in the place of the length
    result: Shape  # the same, of the result
    lengths: tuple[int, ...]  # one for each batch of a pass
    weights: tuple[Shape, ...] = ()  # shapes of operands that all batches share
    equation: str = ""  # of an einsum
    trained: bool = False  # gradients are wanted, too
    calls: int = 4  # of each batch in a pass

    @property
    def called(self) -> str:
        return self.equation or self.operation

    @property
    def sizes(self) -> str:
        shapes = ", ".join("×".join("L" if size == LENGTH else str(size) for size in shape) for shape in self.shapes)
        least, most, count = min(self.lengths), max(self.lengths), len(self.lengths)
        return f"{shapes}; {count} batches, L from {least} to {most}"

    def at(self, length: int) -> tuple[list[Shape], Shape]:
        """Return the shapes of the operands and of the result at one length."""

        def put(shape: Shape) -> Shape:
            return tuple(length if size == LENGTH else size for size in shape)

        return list(map(put, self.shapes)), put(self.result)

    def directions(self) -> tuple[bool, ...]:
        return (self.trained,)

    def scaled(self, device: str, dtype: str) -> LengthsCase:
        """As it is on a GPU, and of a few short lengths on a CPU."""
        if device != "cpu":
            return self
        if self.calls == 1:
            lengths = self.lengths[:20]
        else:  # the last one included
            lengths = tuple(max(length // 8, 1) for length in self.lengths[::-8][::-1])

        def small(shape: Shape) -> Shape:
            return tuple(min(size, LONGEST_ON_CPU) for size in shape)

        shapes, weights = (tuple(map(small, each)) for each in (self.shapes, self.weights))
        return replace(self, shapes=shapes, result=small(self.result), weights=weights, lengths=lengths)


L = LENGTH
_LENGTHS = tuple(range(300, 700, 10))
_RANDOM = tuple(Random(0).sample(range(64, 2048), 40))
_BUCKETED = tuple(-(-length // 64) * 64 for length in Random(1).choices(range(300, 700), k=40))
_HEADS, _ROWS = (4, 8, L, 64), (8, L, 1024)


def _einsum(equation: str, *shapes: Shape, lengths: tuple[int, ...] = _LENGTHS) -> LengthsCase:
    inputs, output = equation.split("->")
    sizes = dict(zip("".join(inputs.split(",")), (size for shape in shapes for size in shape), strict=True))
    # Each axis of the length has a letter of its own.
    return LengthsCase(
        equation, "einsum", shapes, tuple(sizes[letter] for letter in output), lengths, equation=equation
    )


_ALL = (
    _einsum("bihd,bjhd->bhij", (4, L, 8, 64), (4, L, 8, 64)),
    _einsum("bnhd,bnhe->bhde", (4, L, 8, 64), (4, L, 8, 64)),
    _einsum("abcd,dbe->aec", (L, 64, 48, 32), (32, 64, 40), lengths=tuple(length // 8 for length in _LENGTHS)),
    _einsum("bnd,bn->bd", (16, L, 512), (16, L)),
    LengthsCase("attention", "causal attention", (_HEADS,) * 3, _HEADS, _LENGTHS, trained=True),
    LengthsCase("layer_norm", "layer_norm", (_ROWS,), _ROWS, _LENGTHS, ((1024,), (1024,)), trained=True),
    LengthsCase("softmax rows", "softmax", (_ROWS,), _ROWS, _LENGTHS, trained=True),
    LengthsCase("softmax columns", "softmax", ((64, 128, L),), (64, 128, L), _LENGTHS, trained=True),
    LengthsCase(
        "rms_norm + linear", "rms_norm + linear", (_ROWS,), (8, L, 4096), _LENGTHS, ((1024,), (4096, 1024)),
        trained=True,
    ),
    LengthsCase("prefill", "causal attention", ((1, 32, L, 128),) * 3, (1, 32, L, 128), _RANDOM),
    LengthsCase("bucketed training", "causal attention", (_HEADS,) * 3, _HEADS, _BUCKETED, trained=True),
    LengthsCase(
        "growing cache", "attention", ((8, 32, 1, 128), *((8, 32, L, 128),) * 2), (8, 32, 1, 128),
        tuple(range(512, 672)), calls=1,
    ),
    replace(
        _einsum("bind,bjnd->bnij", *((L, 256, 8, 64),) * 2, lengths=(*(32,) * 39, 17)),
        name="ragged last batch", trained=True,
    ),
)  # fmt: skip

FAMILIES = {"public": _ALL}
