"""The cases of the study of the operators, by family: what is computed on which sizes, and what that costs.

The ``epoi`` family has the operators and shapes of EPOI's benchmarks (https://github.com/comaniac/epoi); ``columns``
has the same bytes in rows of every length, for curves; ``models``, by which no tile was chosen, the lengths of rows
that models have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from einops_fast.profiles.cases import ITEM_SIZES, AnyCase

BYTES = {"cpu": 1 << 20, "gpu": 256 << 20}  # Of the input, where rows of every length are swept
CPU_ELEMENTS = 1 << 18  # Of the largest array on a CPU
CPU_FLOPS = 5e7  # The most work of a forward call on a CPU

# Elements to move of a case: of a larger one, the processes that compile would not fit in memory together.
LARGEST_AHEAD = 1 << 29
HALF = ("bfloat16", "float16")
EPS = 1e-6  # Of all norms
P = 0.1  # Of dropout

# How often the input's size is moved at least, forward and in both directions; parameters aside. Forward the inputs are
# read and the results written. Backward the gradients of the results and what follows from the inputs are read, and the
# gradients of the inputs written.
PASSES = {
    **dict.fromkeys(("softmax", "log_softmax", "layer_norm", "rms_norm", "bias_gelu"), (2, 5)),
    "dropout_add_ln": (3, 8),
    "dropout_add_layer_norm": (4, 9),
    "cross_entropy": (1, 3),
}

# Vectors of the length of a row.
PARAMETERS = {"layer_norm": 2, "rms_norm": 1, "dropout_add_ln": 2, "dropout_add_layer_norm": 2, "bias_gelu": 1}


@dataclass(frozen=True)
class OpCase(AnyCase):
    """An operator at a size; no framework and no array."""

    name: str  # what tables call it; `operator@columns` is a point of a curve
    op: str  # the operator
    shape: tuple[int, ...]  # of the input; with attention `(batch, positions, features)`
    width: int = 0  # features of the result of a linear layer, or classes
    heads: int = 0  # of attention
    activation: str = ""  # after a linear layer
    p: float = 0.0  # probability of dropping
    halves: bool = False  # measured in half precision only, as by EPOI, or as it takes long
    compiled: bool = False  # `torch.compile` is measured too: it takes seconds per case

    @property
    def called(self) -> str:
        options = [f"{word} {value}" for word, value in (("p", self.p), ("heads", self.heads)) if value]
        return ", ".join(filter(None, (self.op, self.activation, *options)))

    @property
    def sizes(self) -> str:
        text = "×".join(map(str, self.shape))
        return f"{text}→{self.width}" if self.width else text

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def features(self) -> int:
        return self.shape[-1]

    def elements(self, backward: bool = False) -> int:
        """Return what is read and written at least, forward or in both directions."""
        if self.op in PASSES:
            passes, vectors = PASSES[self.op][backward], PARAMETERS.get(self.op, 0) * self.features
            return passes * prod(self.shape) + vectors * (3 if backward else 1)
        arrays = prod(self.shape) + self._weights
        if self.op == "linear":
            arrays += self.rows * self.width
        elif self.op != "linear_cross_entropy":
            arrays += prod(self.shape)
        # Backward reads these and the gradient of the result again, and writes gradients.
        return arrays * (3 if backward else 1)

    def flops(self, backward: bool = False) -> int:
        """Return the floating-point operations of the products of matrices; 0 where there is none."""
        if self.op in PASSES:
            return 0
        products = 2 * self.rows * self._weights
        attention = 4 * self.rows * self.shape[-2] * self.features if self.heads else 0
        return int(3 * products + 3.5 * attention if backward else products + attention)

    def passes(self, backward: bool = False) -> tuple[tuple[int, int], ...]:
        return ((self.elements(backward), self.flops(backward)),)

    def by_default(self, device: str, dtype: str) -> bool:
        return self.name in CPU_NAMES if device == "cpu" else dtype in HALF or not self.halves

    def compiles(self, way: str) -> bool:
        return self.elements() <= LARGEST_AHEAD and (way != "compile" or self.compiled)

    def scaled(self, device: str, dtype: str) -> OpCase:
        """Return it as it is measured: curves with the same bytes in every dtype, and all of it small on a CPU."""
        if "@" in self.name:
            rows = BYTES[device] // ITEM_SIZES[dtype] // self.features
            return replace(self, shape=(max(1, rows), self.features))
        case = self
        if device == "cpu" and case.heads:
            heads = max(1, case.heads // 8)
            case = replace(case, heads=heads, shape=(2, 64, 32 * heads))
        while device == "cpu" and (
            max(prod(case.shape), case.rows * case.width) > CPU_ELEMENTS or case.flops() > CPU_FLOPS
        ):
            longest = max(range(len(case.shape)), key=lambda axis: case.shape[axis])
            if case.width > case.shape[longest]:
                case = replace(case, width=case.width // 2)
            else:
                shape = [size // 2 if axis == longest else size for axis, size in enumerate(case.shape)]
                case = replace(case, shape=tuple(shape))
        return case

    @property
    def _weights(self) -> int:
        """Elements of the matrix, which with attention makes q, k and v."""
        return self.features * (3 * self.features if self.heads else self.width)


def _named(name: str, /, **others: Any) -> OpCase:
    """Return the case of ``[epoi-]operator[-activation]-sizes``; the last size may be the width or the heads."""
    *words, told = name.removeprefix("epoi-").split("-")
    op, *activation = words
    sizes = tuple(map(int, told.split("x")))
    case = OpCase(name, op, sizes, activation="".join(activation), compiled=name in COMPILED)
    if op.startswith("linear"):
        case = replace(case, shape=sizes[:-1], width=sizes[-1], halves=sizes[-2] == 16384)
    if op == "qkv_self_attn":
        case = replace(case, shape=sizes[:-1], heads=sizes[-1], halves=True)
    if op.startswith("dropout"):
        case = replace(case, p=P)
    return replace(case, **others)


FIRST = (1024, 4096, 65536)  # Columns that come before the others, and with torch.compile
SWEPT = ("softmax", "layer_norm", "rms_norm", "dropout_add_layer_norm", "bias_gelu", "log_softmax")

LOSSES = """
cross_entropy-32768x50257 cross_entropy-8192x50257 cross_entropy-8192x32768 linear_cross_entropy-8192x2048x50257
linear_cross_entropy-8192x4096x32000 linear_cross_entropy-4096x1024x50257
""".split()

LINEAR = """
linear-gelu-4096x4096x4096 linear-gelu-8192x8192x8192 linear-gelu-16384x4096x16384 linear-silu-4096x4096x4096
linear-squared_relu-4096x4096x4096 linear-gelu_tanh-4096x4096x4096 linear-gelu-16384x16384x16384
""".split()

EPOI = """
epoi-qkv_self_attn-4x512x1024x16 epoi-qkv_self_attn-8x512x1024x16 epoi-qkv_self_attn-16x512x1024x16
epoi-qkv_self_attn-16x512x8192x64 epoi-qkv_self_attn-4x2048x8192x64
epoi-layer_norm-32x128x768 epoi-layer_norm-8x512x1024 epoi-layer_norm-16x512x8192 epoi-layer_norm-4x2048x8192
epoi-softmax-4x16x512x512 epoi-softmax-8x16x512x512
epoi-dropout_add_ln-32x128x768 epoi-dropout_add_ln-4x512x768 epoi-dropout_add_ln-8x512x1024
epoi-dropout_add_ln-64x128x1024 epoi-dropout_add_ln-16x512x8192 epoi-dropout_add_ln-16x512x32768
epoi-dropout_add_ln-4x2048x8192 epoi-dropout_add_ln-4x2048x32768
epoi-bias_gelu-8x512x1024 epoi-bias_gelu-8x512x768 epoi-bias_gelu-2x1024x4096 epoi-bias_gelu-16x512x8192
epoi-bias_gelu-16x512x32768 epoi-bias_gelu-4x2048x8192 epoi-bias_gelu-4x2048x32768
""".split()

# The first of each operator in EPOI's benchmarks, and some of the others.
COMPILED = (
    *{name.rpartition("-")[0]: name for name in reversed(EPOI)}.values(),
    *(name for name in LINEAR if "-4096" in name),
    "cross_entropy-8192x50257",
)

# Of whom, and what.
OF_MODELS = """
vit layer_norm-256x197x768            swin layer_norm-2048x49x192          gpt2-xl layer_norm-16x1024x1600
whisper layer_norm-16x1500x1280       pairs layer_norm-512x512x128         llama rms_norm-4x4096x5120
qwen rms_norm-4x4096x3584             gemma rms_norm-8x2048x2304           heads rms_norm-8x4096x32x128
vit softmax-128x12x197x197            windows softmax-4096x3x49x49         sequence softmax-4x16x1023x1023
words softmax-2048x50257              more-words log_softmax-1024x151936   vit bias_gelu-256x197x3072
gpt2-xl bias_gelu-8x1024x6400         vit dropout_add_layer_norm-256x197x768
gpt2-xl dropout_add_layer_norm-16x1024x1600
llama cross_entropy-8192x128256       qwen cross_entropy-4096x151936       bert cross_entropy-16384x30522
vit linear-gelu-12608x768x3072        gpt2-xl linear-gelu_tanh-8192x1600x6400
qwen linear-silu-8192x3584x18944      llama linear_cross_entropy-8192x4096x128256
qwen linear_cross_entropy-4096x3584x151936
""".split()

# What ``--cases`` chooses from.
FAMILIES: dict[str, tuple[OpCase, ...]] = {
    "columns": tuple(
        _named(f"{op}-1x{256 << power}", name=f"{op}@{256 << power}", compiled=256 << power in FIRST)
        for op in SWEPT
        for power in range(9)
    ),
    "losses": tuple(map(_named, LOSSES)),
    "linear": tuple(map(_named, LINEAR)),
    "epoi": tuple(map(_named, EPOI)),
}

_ALL = tuple(case for family in FAMILIES.values() for case in family)


def _importance(case: OpCase) -> int:
    """Where the time of a run isn't enough, what comes last is left out."""
    if "@" in case.name:
        return 0 if case.compiled else 3
    large = case.heads == 64 or case.shape[0] == 16384
    return 4 if large else 2 if case.name.startswith("epoi") else 1


FAMILIES["models"] = tuple(
    _named(told, name=f"model-{whose}-{told.partition('-')[0]}", halves=False, compiled=True)
    for whose, told in zip(OF_MODELS[::2], OF_MODELS[1::2], strict=True)
)
FAMILIES["public"] = tuple(sorted(_ALL, key=_importance))

# The public ones on a CPU.
CPU_NAMES = tuple(
    case.name
    for case in _ALL
    if (case.name.endswith("@4096") if "@" in case.name else case.compiled and case.op != "linear")
    or case.name in ("linear-gelu-4096x4096x4096", "linear_cross_entropy-8192x4096x32000")
)
