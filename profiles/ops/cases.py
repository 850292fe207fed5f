"""The cases of the study of the operators, by family: what is computed on which sizes, and what that costs.

The ``epoi`` family has the operators and shapes of EPOI's benchmarks (https://github.com/comaniac/epoi); ``columns``
has the same bytes in rows of every length, for curves; ``models``, by which no tile was chosen, the lengths of rows
that models have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from einops_fast.profiles.cases import ITEM_SIZES, AnyCase

__all__ = ["CPU_NAMES", "EPS", "FAMILIES", "MODELS", "PASSES", "OpCase"]

BYTES = {"cpu": 1 << 20, "gpu": 256 << 20}  # Of the input, where rows of every length are swept
CPU_ELEMENTS = 1 << 18  # Of the largest array on a CPU
CPU_FLOPS = 5e7  # The most work of a forward call on a CPU

# Elements to move of a case: of a larger one, the processes that compile would not fit in memory together.
LARGEST_AHEAD = 1 << 29
HALF = ("bfloat16", "float16")
EPS = 1e-6  # Of all norms
P = 0.1  # Of dropout

PASSES = {
    "softmax": (2, 5),
    "log_softmax": (2, 5),
    "layer_norm": (2, 5),
    "rms_norm": (2, 5),
    "dropout_add_ln": (3, 8),
    "dropout_add_layer_norm": (4, 9),
    "bias_gelu": (2, 5),
    "cross_entropy": (1, 3),
}
"""How often the input's size is moved at least, forward and in both directions; parameters aside.

Forward the inputs are read and the results written. Backward the gradients of the results are read, and what follows
from the inputs, and the gradients of the inputs are written.
"""

# Vectors of the length of a row.
PARAMETERS = {"layer_norm": 2, "rms_norm": 1, "dropout_add_ln": 2, "dropout_add_layer_norm": 2, "bias_gelu": 1}

# What is a module of Hugging Face's, ours being the same module after ``einops_fast.nn.optimize``.
MODELS = ("bert_attention", "gpt_attention", "bert_layer", "gpt2_block")
CAUSAL = ("gpt_attention", "gpt2_block")

# Products of the hidden states and a square matrix, in layers with attention.
PROJECTIONS = {"qkv_self_attn": 3, "bert_attention": 3, "gpt_attention": 4, "bert_layer": 4, "gpt2_block": 4}


@dataclass(frozen=True)
class OpCase(AnyCase):
    """An operator at a size; no framework and no array."""

    name: str  # what tables call it; `operator@columns` is a point of a curve
    op: str  # the operator
    shape: tuple[int, ...]  # of the input; of layers with attention `(batch, positions, features)`
    width: int = 0  # features of the result of a linear layer, classes, or those between the two layers of an MLP
    heads: int = 0  # of attention
    activation: str = ""  # after a linear layer
    p: float = 0.0  # probability of dropping
    halves: bool = False  # measured in half precision only, as by EPOI, or as it takes long
    compiled: bool = False  # `torch.compile` is measured too: it takes seconds per case

    @property
    def called(self) -> str:
        """The operator and its options, for tables."""
        options = [f"{word} {value}" for word, value in (("p", self.p), ("heads", self.heads)) if value]
        return ", ".join(filter(None, (self.op, self.activation, *options)))

    @property
    def sizes(self) -> str:
        """Of the input and, where it has others, of the result."""
        text = "×".join(map(str, self.shape))
        return f"{text}→{self.width}" if self.width else text

    @property
    def rows(self) -> int:
        """Rows of the input."""
        return prod(self.shape[:-1])

    @property
    def features(self) -> int:
        """The last axis of the input."""
        return self.shape[-1]

    def elements(self, backward: bool = False) -> int:
        """What is read and written at least, forward or in both directions."""
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
        """Floating-point operations of the products of matrices; 0 where there is none.

        >>> FAMILIES["linear"][0].flops() == 2 * 4096 ** 3
        True
        """
        if self.op in PASSES:
            return 0
        products = 2 * self.rows * self._weights
        attention = 0.0
        if self.op in PROJECTIONS:
            batch, positions, features = self.shape
            attention = 4 * batch * positions**2 * features * (0.5 if self.op in CAUSAL else 1.0)
        return int(3 * products + 3.5 * attention if backward else products + attention)

    def passes(self, backward: bool = False) -> tuple[tuple[int, int], ...]:
        """Elements and FLOPs, of both directions together."""
        return ((self.elements(backward), self.flops(backward)),)

    def by_default(self, device: str, dtype: str) -> bool:
        return self.name in CPU_NAMES if device == "cpu" else dtype in HALF or not self.halves

    def compiles(self, way: str) -> bool:
        return self.elements() <= LARGEST_AHEAD and (way != "compile" or self.compiled)

    def scaled(self, device: str, dtype: str) -> OpCase:
        """As it is measured: curves with the same bytes in every dtype, and all of it small on a CPU."""
        if "@" in self.name:
            rows = BYTES[device] // ITEM_SIZES[dtype] // self.features
            return replace(self, shape=(max(1, rows), self.features))
        case = self
        if device == "cpu" and case.heads:
            heads = max(1, case.heads // 8)
            case = replace(case, heads=heads, shape=(2, 64, 32 * heads), width=4 * 32 * heads if case.width else 0)
        while device == "cpu" and case._is_large_for_a_cpu:
            longest = max(range(len(case.shape)), key=lambda axis: case.shape[axis])
            if case.width > case.shape[longest]:
                case = replace(case, width=case.width // 2)
            else:
                shape = [size // 2 if axis == longest else size for axis, size in enumerate(case.shape)]
                case = replace(case, shape=tuple(shape))
        return case

    @property
    def _is_large_for_a_cpu(self) -> bool:
        return max(prod(self.shape), self.rows * self.width) > CPU_ELEMENTS or self.flops() > CPU_FLOPS

    @property
    def _weights(self) -> int:
        """Elements of all matrices."""
        if self.op in PROJECTIONS:
            return self.features * (PROJECTIONS[self.op] * self.features + 2 * self.width)
        return self.features * self.width


SWEPT = tuple(256 << power for power in range(9))  # Columns from 256 to 65536
FIRST = (1024, 4096, 65536)  # Columns that come before the others, and with torch.compile
SWEPT_OPS = ("softmax", "layer_norm", "rms_norm", "dropout_add_layer_norm", "bias_gelu", "log_softmax")


def _columns() -> tuple[OpCase, ...]:
    return tuple(
        OpCase(f"{op}@{columns}", op, (1, columns), p=P if op.startswith("dropout") else 0.0, compiled=columns in FIRST)
        for op in SWEPT_OPS
        for columns in SWEPT
    )


def _epoi(op: str, *shapes: tuple[int, ...], **others: object) -> tuple[OpCase, ...]:
    """Cases of an operator; the first is compiled."""
    return tuple(
        replace(OpCase(f"epoi-{op}-{'x'.join(map(str, shape))}", op, shape, compiled=not at), **others)  # type: ignore[arg-type]
        for at, shape in enumerate(shapes)
    )


def _epoi_attention(op: str, *shapes: tuple[int, ...], p: float = 0.0) -> tuple[OpCase, ...]:
    """Shapes end in the number of heads."""
    return tuple(
        replace(case, shape=case.shape[:3], heads=case.shape[3]) for case in _epoi(op, *shapes, halves=True, p=p)
    )


def _linear(tokens: int, features: int, width: int, activation: str) -> OpCase:
    name = f"linear-{activation}-{tokens}x{features}x{width}"
    case = OpCase(name, "linear", (tokens, features), width=width, activation=activation)
    return replace(case, compiled=tokens == 4096, halves=features == 16384)


def _layer(name: str, op: str, *shape: int) -> OpCase:
    return OpCase(name, op, shape, width=4096, heads=16, p=P, compiled=True)


# What ``--cases`` chooses from.
FAMILIES: dict[str, tuple[OpCase, ...]] = {
    "columns": _columns(),
    "losses": (
        OpCase("cross_entropy-32768x50257", "cross_entropy", (32768, 50257)),
        OpCase("cross_entropy-8192x50257", "cross_entropy", (8192, 50257), compiled=True),
        OpCase("cross_entropy-8192x32768", "cross_entropy", (8192, 32768)),
        OpCase("linear_cross_entropy-8192x2048x50257", "linear_cross_entropy", (8192, 2048), width=50257),
        OpCase("linear_cross_entropy-8192x4096x32000", "linear_cross_entropy", (8192, 4096), width=32000),
        OpCase("linear_cross_entropy-4096x1024x50257", "linear_cross_entropy", (4096, 1024), width=50257),
    ),
    "linear": (
        _linear(4096, 4096, 4096, "gelu"),
        _linear(8192, 8192, 8192, "gelu"),
        _linear(16384, 4096, 16384, "gelu"),
        _linear(4096, 4096, 4096, "silu"),
        _linear(4096, 4096, 4096, "squared_relu"),
        _linear(4096, 4096, 4096, "gelu_tanh"),
        _linear(16384, 16384, 16384, "gelu"),
    ),
    "layers": (
        _layer("bert-large-layer", "bert_layer", 8, 512, 1024),
        _layer("gpt2-medium-block", "gpt2_block", 8, 512, 1024),
    ),
    "epoi": (
        *_epoi_attention("bert_attention", (8, 512, 1024, 16), (16, 512, 8192, 64), (4, 2048, 8192, 64), p=P),
        *_epoi_attention("gpt_attention", (8, 1024, 1024, 16), (16, 512, 8192, 64), (4, 2048, 8192, 64), p=P),
        *_epoi_attention(
            "qkv_self_attn", (4, 512, 1024, 16), (8, 512, 1024, 16), (16, 512, 1024, 16), (16, 512, 8192, 64),
            (4, 2048, 8192, 64),
        ),
        *_epoi("layer_norm", (32, 128, 768), (8, 512, 1024), (16, 512, 8192), (4, 2048, 8192)),
        *_epoi("softmax", (4, 16, 512, 512), (8, 16, 512, 512)),
        *_epoi(
            "dropout_add_ln", (32, 128, 768), (4, 512, 768), (8, 512, 1024), (64, 128, 1024), (16, 512, 8192),
            (16, 512, 32768), (4, 2048, 8192), (4, 2048, 32768), p=P,
        ),
        *_epoi(
            "bias_gelu", (8, 512, 1024), (8, 512, 768), (2, 1024, 4096), (16, 512, 8192), (16, 512, 32768),
            (4, 2048, 8192), (4, 2048, 32768),
        ),
    ),
}  # fmt: skip

_ALL = tuple(case for family in FAMILIES.values() for case in family)


def _model(name: str, op: str, *shape: int, width: int = 0, activation: str = "") -> OpCase:
    p = P if op.startswith("dropout") else 0.0
    return OpCase(f"model-{name}-{op}", op, shape, width=width, activation=activation, p=p, compiled=True)


FAMILIES["models"] = (
    _model("vit", "layer_norm", 256, 197, 768),
    _model("swin", "layer_norm", 2048, 49, 192),
    _model("gpt2-xl", "layer_norm", 16, 1024, 1600),
    _model("whisper", "layer_norm", 16, 1500, 1280),
    _model("pairs", "layer_norm", 512, 512, 128),
    _model("llama", "rms_norm", 4, 4096, 5120),
    _model("qwen", "rms_norm", 4, 4096, 3584),
    _model("gemma", "rms_norm", 8, 2048, 2304),
    _model("heads", "rms_norm", 8, 4096, 32, 128),
    _model("vit", "softmax", 128, 12, 197, 197),
    _model("windows", "softmax", 4096, 3, 49, 49),
    _model("sequence", "softmax", 4, 16, 1023, 1023),
    _model("words", "softmax", 2048, 50257),
    _model("more-words", "log_softmax", 1024, 151936),
    _model("vit", "bias_gelu", 256, 197, 3072),
    _model("gpt2-xl", "bias_gelu", 8, 1024, 6400),
    _model("vit", "dropout_add_layer_norm", 256, 197, 768),
    _model("gpt2-xl", "dropout_add_layer_norm", 16, 1024, 1600),
    _model("llama", "cross_entropy", 8192, 128256),
    _model("qwen", "cross_entropy", 4096, 151936),
    _model("bert", "cross_entropy", 16384, 30522),
    _model("vit", "linear", 64 * 197, 768, width=3072, activation="gelu"),
    _model("gpt2-xl", "linear", 8192, 1600, width=6400, activation="gelu_tanh"),
    _model("qwen", "linear", 8192, 3584, width=18944, activation="silu"),
    _model("llama", "linear_cross_entropy", 8192, 4096, width=128256),
    _model("qwen", "linear_cross_entropy", 4096, 3584, width=151936),
)


def _importance(case: OpCase) -> int:
    """Where the time of a run isn't enough, what comes last is left out."""
    if "@" in case.name:
        return 0 if case.compiled else 3
    large = case.heads == 64 or case.shape[0] == 16384
    return 4 if large else 1 if case in (*FAMILIES["losses"], *FAMILIES["linear"], *FAMILIES["layers"]) else 2


FAMILIES["public"] = tuple(sorted(_ALL, key=_importance))

# The public ones on a CPU.
CPU_NAMES = tuple(
    case.name
    for case in _ALL
    if (case.name.endswith("@4096") if "@" in case.name else case.compiled and case.op != "linear")
    or case.name in ("linear-gelu-4096x4096x4096", "linear_cross_entropy-8192x4096x32000")
)
