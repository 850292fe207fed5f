"""The table of calls says of each kind of call all that it takes to make it again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einops_fast import attention, fast_einsum, metrics, ops
from einops_fast.errors import EinsumError
from einops_fast.observing.calls import Called, Layout

CAUSAL = {"alignment": None, "causal": True, "deterministic": False, "dropout_p": 0.0, "return_lse": False}


def recorded(folder: Path) -> list[Called]:
    return [Called.from_row(row) for row in metrics.read(folder)["calls"]]


def test_numpy_s_calls(tmp_path: Path) -> None:
    x = np.ones((3, 4), "float32")
    with metrics.record(tmp_path, ["calls"]):
        for _ in range(3):
            fast_einsum("one two, two three -> one three", x, x.T)
            ops.layer_norm(x)
            attention("i d, j d, j e -> i e", x, x, x, causal=True)
    of_x, transposed = Layout((3, 4), (4, 1), "float32"), Layout((4, 3), (1, 4), "float32")
    product, *_, norm, attended = recorded(tmp_path)  # between are those of the attention
    assert product[:3] == ("einsum", "ot,ta->oa", (of_x, transposed))
    assert product.given == {"dtype": None, "memory": [], "order": "K", "path": "auto", "precision": "ieee"}
    assert (norm.kind, norm.what, norm.arrays) == ("operator", "norm", (of_x, None, None))
    assert norm.given["arguments"][:2] == [1, 1]
    assert (attended.kind, attended.what, attended.arrays) == ("attention", "i d, j d, j e -> i e", (of_x,) * 3)
    assert attended.given["names"] == ["q", "k", "v"]
    assert attended.given["options"].items() >= CAUSAL.items()
    assert {call[4:] for call in (product, norm, attended)} == {("numpy", "cpu", "forward")}
    assert str(norm) == "norm of 3×4 – –"


def test_gradients_are_told_apart(tmp_path: Path, torch: Any) -> None:
    x, y = torch.ones(2, 5, 3, 4, requires_grad=True), torch.ones(2, 5, 3, 4)
    with metrics.record(tmp_path, ["calls"]), metrics.label("layer"):
        fast_einsum("bihd,bjhd->bhij", x, y).sum().backward()
        ops.softmax(x)
        with torch.no_grad():
            ops.log_softmax(x)
    calls = {
        (call.what, call.direction): [each and each.gradient for each in call.arrays] for call in recorded(tmp_path)
    }
    assert calls == {
        ("bihd,bjhd->bhij", "both"): [True, False],
        ("bhij,bjhd->bihd", "backward"): [False, False],
        ("softmax", "both"): [True, None],
        ("softmax", "forward"): [False, None],
    }
    rows = metrics.read(tmp_path)["calls"]
    assert {row["label"] for row in rows} == {"layer"}
    assert [row["calls"] for row in rows] == ["1", "1", "", ""]


@pytest.mark.parametrize(("column", "text"), [
    ("kind", "dance"), ("arrays", "[{}]"), ("arrays", "[null]"), ("options", "[]"), ("options", "{"), ("device", None)
])  # fmt: skip
def test_what_is_no_call_is_refused(tmp_path: Path, column: str, text: str | None) -> None:
    with metrics.record(tmp_path, ["calls"]):
        ops.softmax(np.ones((3, 4)))
    (row,) = metrics.read(tmp_path)["calls"]
    row = {name: cell for name, cell in row.items() if name != column} | ({} if text is None else {column: text})
    with pytest.raises(EinsumError, match="a row of the table of calls can't be read"):
        Called.from_row(row)
