"""The cases of the attention study, by family: shapes, features and layouts, with what each costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from einops_fast.attention.pattern import read_layout
from einops_fast.profiles.cases import AnyCase

BACKWARD = 3.5  # FLOPs of forward and backward over those of forward: seven products in place of two
CPU_FLOPS = 1e7  # The most work of a forward call on a CPU

# The public ones on a CPU.
CPU_CASES = (
    "row-2x16x8192x64", "row-2x16x8192x64-causal", "layout-bshd", "feature-window", "feature-softcap", "feature-bias",
    "feature-mask", "feature-values-odd", "heads-32-8-causal", "varlen", "decode-8x16k",
)  # fmt: skip

# Elements of a case: of a larger one, the processes that compile would not fit in memory together.
LARGEST_AHEAD = 1 << 30


@dataclass(frozen=True)
class AttentionCase(AnyCase):
    """One attention, in self-attention's usual sizes; no framework and no array."""

    name: str  # its family and what is special about it
    batch: int  # elements of the batch; with `lengths` there is no such axis
    heads: int  # of q; a multiple of `kv_heads`
    kv_heads: int  # of k and v
    q_len: int  # queries; of packed sequences, all together
    kv_len: int  # keys
    head_dim: int  # features of q and k
    v_head_dim: int  # features of v and the result
    layout: str = "bhsd"  # axes of q, k, v and the result in the order of memory, as `attention` takes it
    causal: bool = False  # hide keys after the query
    window: tuple[int, int] | None = None  # keys that are seen before and after the query's own; `None` for all
    softcap: float = 0.0  # of the scores; 0 for not
    bias: bool = False  # a bias per head, query and key, whose gradient is wanted too
    mask: bool = False  # a boolean mask per element of the batch, query and key
    lengths: tuple[int, ...] = ()  # of sequences that are packed along the positions
    trained: bool = True  # gradients are measured too

    @property
    def called(self) -> str:
        options = {
            "causal": self.causal,
            f"window {self.window}": self.window,
            f"softcap {self.softcap:g}": self.softcap,
            "bias h i j": self.bias,
            "mask b i j": self.mask,
            f"{len(self.lengths)} sequences": self.lengths,
        }
        return "; ".join((read_layout(self.layout).pattern, *(text for text, there in options.items() if there)))

    @property
    def sizes(self) -> str:

        def both(first: int, second: int) -> str:
            return str(first) if first == second else f"{first}/{second}"

        batch = len(self.lengths) or self.batch
        heads, positions = both(self.heads, self.kv_heads), both(self.q_len, self.kv_len)
        return f"{batch}×{heads}×{positions}×{both(self.head_dim, self.v_head_dim)}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        q = self._shape(self.heads, self.q_len, self.head_dim)
        k, v = (self._shape(self.kv_heads, self.kv_len, features) for features in (self.head_dim, self.v_head_dim))
        return (q, k, v, *([(self.heads, self.q_len, self.kv_len)] if self.bias else []))

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self._shape(self.heads, self.q_len, self.v_head_dim)

    @property
    def scores(self) -> int:
        """Pairs of a query and a key, over all heads: what an unfused way holds."""
        return self.heads * sum(q_len * kv_len for q_len, kv_len in self._sequences)

    def flops(self, backward: bool = False) -> int:
        """Return ``2 * heads * pairs * (head_dim + v_head_dim)``, times 3.5 with backward.

        Half of the pairs count where causal, as everyone has it; with a window exactly those that are seen.
        """
        if self.window is None:
            pairs = self.scores / self.heads * (0.5 if self.causal else 1.0)
        else:
            pairs = sum(visible_pairs(*lengths, self.causal, self.window) for lengths in self._sequences)
        return int(2 * self.heads * pairs * (self.head_dim + self.v_head_dim) * (BACKWARD if backward else 1.0))

    def elements(self, backward: bool = False) -> int:
        """Return what is read and written at least.

        Operands and result; for backward these and the cotangent again, and gradients: twice as much.
        """
        features = self.head_dim + self.v_head_dim
        per_element = features * (self.heads * self.q_len + self.kv_heads * self.kv_len)
        bias = self.heads * self.q_len * self.kv_len * self.bias
        return (self.batch * per_element + bias) * (3 if backward else 1)

    def directions(self) -> tuple[bool, ...]:
        return (False, True) if self.trained else (False,)

    def by_default(self, device: str, dtype: str) -> bool:
        """Few on a CPU, and in float16 only rows: that takes as long as bfloat16."""
        return self.name in CPU_CASES if device == "cpu" else dtype != "float16" or self.name.startswith("row-")

    def compiles(self, way: str) -> bool:
        return self.elements() <= LARGEST_AHEAD

    def scaled(self, device: str, dtype: str) -> AttentionCase:
        """Return it as it is on a GPU, shrunk on a CPU: sequences first, then the batch, then heads."""
        case = self
        while device == "cpu" and case.flops() > CPU_FLOPS:
            if case.lengths:
                lengths = tuple(max(1, length // 2) for length in case.lengths)
                case = replace(case, lengths=lengths, q_len=sum(lengths), kv_len=sum(lengths))
            elif case.kv_len > 128:
                window = case.window and (case.window[0] // 2, case.window[1] // 2)
                case = replace(case, q_len=max(1, case.q_len // 2), kv_len=case.kv_len // 2, window=window)
            elif case.batch > 1:
                case = replace(case, batch=case.batch // 2)
            elif case.kv_heads > 1:
                case = replace(case, heads=case.heads // 2, kv_heads=case.kv_heads // 2)
            else:
                break
        return case

    def passes(self, backward: bool = False) -> tuple[tuple[int, int], ...]:
        return ((self.elements(backward), self.flops(backward)),)

    @property
    def _sequences(self) -> list[tuple[int, int]]:
        if self.lengths:
            return [(length, length) for length in self.lengths]
        return [(self.q_len, self.kv_len)] * self.batch

    def _shape(self, heads: int, positions: int, features: int) -> tuple[int, ...]:
        sizes = {"b": self.batch, "h": heads, "s": positions, "t": positions, "d": features}
        return tuple(sizes[letter] for letter in self.layout)


def visible_pairs(q_len: int, kv_len: int, causal: bool, window: tuple[int, int]) -> int:
    """Return the number of pairs of a query and a key that it sees, the first query facing the first key."""
    before, after = window
    after = 0 if causal else after
    return sum(max(0, min(kv_len, i + after + 1) - max(0, i - before)) for i in range(q_len))


def _case(name: str, batch: int, heads: int, length: int, head_dim: int, **others: object) -> AttentionCase:
    case = AttentionCase(name, batch, heads, heads, length, length, head_dim, head_dim)
    return replace(case, **others)  # type: ignore[arg-type]


_LENGTHS = (2048, 113, 1501, 640, 1023, 300, 1777, 64, 1290, 905, 17, 1999, 488, 1152, 731, 1360)

# What ``--cases`` chooses from; what matters most comes first.
FAMILIES: dict[str, tuple[AttentionCase, ...]] = {
    "rows": tuple(
        _case(f"row-{'x'.join(map(str, size))}{'-causal' * causal}", *size, causal=causal)
        for size in ((2, 16, 8192, 64), (2, 16, 8192, 128), (32, 16, 512, 64), (8, 16, 2048, 128))
        for causal in (False, True)
    ),
    "layouts": tuple(
        _case(f"layout-{layout}", 4, 16, 4096, 128, causal=True, layout=layout)
        for layout in ("bhsd", "bshd", "sbhd", "hbsd")
    ),
    "features": (
        _case("feature-window", 2, 16, 8192, 64, causal=True, window=(1024, 0)),
        _case("feature-softcap", 2, 16, 4096, 128, causal=True, softcap=30.0),
        _case("feature-bias", 4, 16, 2048, 64, bias=True),
        _case("feature-softcap-bias", 4, 16, 2048, 64, softcap=30.0, bias=True),
        _case("feature-mask", 4, 16, 2048, 64, mask=True),
        _case("feature-values-64", 4, 16, 4096, 128, causal=True, v_head_dim=64),
        _case("feature-values-odd", 4, 16, 2048, 75, v_head_dim=53),
    ),
    "heads": (
        _case("heads-32-8", 2, 32, 4096, 128, kv_heads=8),
        _case("heads-32-8-causal", 2, 32, 4096, 128, kv_heads=8, causal=True),
    ),
    "varlen": tuple(
        _case(f"varlen{'-causal' * causal}", 1, 16, sum(_LENGTHS), 64, layout="thd", lengths=_LENGTHS, causal=causal)
        for causal in (False, True)
    ),
    "decode": tuple(
        _case(f"decode-{batch}x{kv_len // 1024}k", batch, 32, 1, 128, kv_heads=4, kv_len=kv_len, trained=False)
        for batch in (1, 8, 128)
        for kv_len in (1024, 16384, 65536)
    ),
    "dims": tuple(_case(f"dim-{dim}", 2, 16, 4096, dim, causal=True) for dim in (32, 64, 96, 128, 192, 256)),
}

FAMILIES["public"] = tuple(case for family in FAMILIES.values() for case in family)

# As models call it: lengths that are no power of two, cross-attention, few heads, many windows.
FAMILIES["models"] = (
    _case("model-gpt2", 8, 12, 1024, 64, causal=True),
    _case("model-llama3-8b", 1, 32, 4096, 128, kv_heads=8, causal=True),
    _case("model-qwen2-7b", 1, 28, 3000, 128, kv_heads=4, causal=True),
    _case("model-phi3", 2, 32, 2048, 96, causal=True),
    _case("model-gemma-2b", 1, 8, 4096, 256, kv_heads=1, causal=True),
    _case("model-deepseek", 2, 16, 4096, 192, causal=True, v_head_dim=128),
    _case("model-bert", 32, 16, 384, 64),
    _case("model-t5", 8, 16, 512, 64, bias=True),
    _case("model-vit-b", 64, 12, 197, 64),
    _case("model-siglip", 16, 16, 729, 72),
    _case("model-swin", 2048, 3, 49, 32, bias=True),
    _case("model-whisper", 8, 20, 1500, 64),
    _case("model-whisper-cross", 8, 20, 448, 64, kv_len=1500),
    _case("model-flux", 1, 24, 4608, 128),
    _case("model-sdxl", 4, 10, 4096, 64),
    _case("model-sdxl-cross", 4, 20, 1024, 64, kv_len=77),
    _case("model-sd-40", 4, 8, 4096, 40),
    _case("model-sd-80", 4, 8, 1024, 80),
    _case("model-sd-160", 8, 8, 256, 160),
    _case("model-evoformer", 256, 4, 256, 32, bias=True),
    _case("model-small", 4, 4, 100, 64, causal=True),
)
