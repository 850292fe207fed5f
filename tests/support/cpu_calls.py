"""A program that calls everything of the library on a CPU, forward and backward.

It prints which modules of Triton, and of the kernels in it, that has imported. With the argument ``absent`` nothing
finds Triton; with ``compiled``, the calls are compiled afterwards.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any


class _Absent:
    """Finds no Triton, as if it weren't installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "absent" in sys.argv:
    sys.meta_path.insert(0, _Absent())  # type: ignore[arg-type]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import einops_fast  # noqa: E402
from einops_fast import attention, fast_einsum, nn, ops  # noqa: E402

torch.manual_seed(0)
ROWS = torch.randn(2, 6, 8, requires_grad=True)
WEIGHT, VECTOR = torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)
TARGET = torch.randint(0, 8, (2, 6))
HEADS = torch.randn(2, 4, 6, 8, requires_grad=True)
SEEN = torch.rand(6, 6) > 0.3
PATTERN = "b h i d, b h j d, b h j e -> b h i e"

FUNCTIONS: dict[str, Callable[[], Any]] = {
    "softmax": lambda: ops.softmax(ROWS, causal=True),
    "log_softmax": lambda: ops.log_softmax(ROWS, "b", pattern="a b c", temperature=2.0),
    "layer_norm": lambda: ops.layer_norm(ROWS, 8, VECTOR, VECTOR),
    "rms_norm": lambda: ops.rms_norm(ROWS, 8, VECTOR),
    "dropout_add_layer_norm": lambda: ops.dropout_add_layer_norm(ROWS, ROWS, VECTOR, VECTOR, 0.1)[0],
    "dropout_bias_activation": lambda: ops.dropout_bias_activation(ROWS, VECTOR, "gelu", 0.1),
    "bias_gelu": lambda: ops.bias_gelu(ROWS, VECTOR),
    "linear": lambda: ops.linear(ROWS, WEIGHT, VECTOR, activation="relu"),
    "cross_entropy": lambda: ops.cross_entropy(ROWS, TARGET, label_smoothing=0.1, z_loss=0.1),
    "linear_cross_entropy": lambda: ops.linear_cross_entropy(ROWS, WEIGHT, TARGET, VECTOR),
    "qkv_self_attention": lambda: ops.qkv_self_attention(ROWS, 2, torch.cat([WEIGHT] * 3)),
    "attention": lambda: attention(PATTERN, HEADS, HEADS, HEADS, causal=True),
    "attention with a mask": lambda: attention(PATTERN, HEADS, HEADS, HEADS, mask=("i j", SEEN)),
    "attention with dropout": lambda: attention(PATTERN, HEADS, HEADS, HEADS, dropout_p=0.1),
    "scaled_dot_product_attention": lambda: einops_fast.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "fast_einsum": lambda: fast_einsum("bhid,bhjd->bhij", HEADS, HEADS),
    "fast_einsum of three": lambda: fast_einsum("bid,de,bje->bij", ROWS, WEIGHT, ROWS),
}

LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "LayerNorm": lambda: nn.LayerNorm(8),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "DropoutAddLayerNorm": lambda: nn.DropoutAddLayerNorm(8, p=0.1),
    "FusedLinear": lambda: nn.FusedLinear(8, 8, activation="gelu"),
    "FusedDropoutBias": lambda: nn.FusedDropoutBias(0.1, (8,)),
    "Softmax": lambda: nn.Softmax(-1),
    "BertSelfAttention": lambda: nn.BertSelfAttention(8, 2),
    "CausalSelfAttention": lambda: nn.CausalSelfAttention(2, 8),
    "GPTAttention": lambda: nn.GPTAttention(8, 2),
    "QKVSelfAttention": lambda: nn.QKVSelfAttention(8, 2),
}


class Model(torch.nn.Module):
    """What ``nn.optimize`` finds layers of torch in."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.LayerNorm(8), torch.nn.Dropout(0.1), torch.nn.Softmax(-1), torch.nn.RMSNorm(8)
        )
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x: Any) -> Any:
        return self.loss(self.body(x).movedim(-1, 1), TARGET)


def first(found: Any) -> Any:
    """The result, or the first of several."""
    return found[0] if isinstance(found, tuple) else found


def optimized() -> Callable[[], Any]:
    """The model after ``nn.optimize``, which has to have replaced something."""
    model = Model()
    report = nn.optimize(model)
    assert any(row.now for row in report.rows), report
    return lambda: model(ROWS)


def run(name: str, call: Callable[[], Any]) -> None:
    """Forward and backward."""
    try:
        first(call()).sum().backward()
    except BaseException as error:
        raise AssertionError(f"{name} failed") from error


calls = dict(FUNCTIONS)
calls |= {name: partial(make(), ROWS) for name, make in LAYERS.items()}
calls["optimized model"] = optimized()
for each in calls.items():
    run(*each)
einops_fast.patch("torch", "torch.sdpa")
run("patched einsum", lambda: torch.einsum("bid,bjd->bij", ROWS, ROWS))
run("patched attention", lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS))
einops_fast.unpatch()
print(*[name for name in sys.modules if name.split(".")[0] == "triton" or ".backends.triton." in f"{name}."])
if "compiled" in sys.argv:
    for each in ("optimized model", "BertSelfAttention"):
        run(f"{each}, compiled", torch.compile(calls[each], backend="aot_eager"))
    every = list(FUNCTIONS.values())
    run("the functions, compiled", torch.compile(lambda: sum(call().sum() for call in every), backend="aot_eager"))
