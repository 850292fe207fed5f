"""`einops_fast.profile`: what a program did and what to change about it; the table of its calls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equations import cases, operands
from hypothesis import given
from hypothesis import strategies as st
from python_process import run_python

import einops_fast
import einops_fast.cli
from einops_fast import attention, fast_einsum, metrics, ops, patched, profile
from einops_fast.errors import EinsumError
from einops_fast.observing.calls import Called, Layout


def hints_of(equation, *operands, **options):
    with einops_fast.profile() as seen:
        fast_einsum(equation, *operands, **options)
    [row] = seen.rows
    return row.hints


def test_rows_are_the_equations_that_were_called():
    a, b = np.ones((20, 30)), np.ones((30, 40))
    with einops_fast.profile() as seen:
        for _ in range(3):
            fast_einsum("ij,jk->ik", a, b)
        with metrics.label("other"):
            fast_einsum("rows inner, inner columns -> rows columns", a, b)
    assert sorted((row.equation, row.calls, row.label) for row in seen.rows) == [
        ("ij,jk->ik", 3, ""),
        ("rows inner, inner columns -> rows columns", 1, "other"),
    ]
    for row in seen.rows:
        assert row.shapes == ((20, 30), (30, 40))
        assert (row.dtype, row.device) == ("float64", "numpy cpu")
        assert row.total >= row.seconds > 0
        assert 0 < row.of_floor == row.floor / row.seconds
        assert row.hints == ()
    assert seen.seconds == pytest.approx(sum(row.total for row in seen.rows))
    text = str(seen)
    assert "4 calls took" in text
    assert "20×30, 30×40" in text


def test_a_copy_says_which_order_avoids_it():
    left, right = np.ones((300, 40, 50)), np.ones((50, 40, 60))
    for equation, order, wanted in (
        ("ijk,kjl->il", "k j l", "j k l"),
        ("row head dim, dim head col -> row col", "dim head col", "head dim col"),
    ):
        [hint] = hints_of(equation, left, right)
        assert hint.startswith(f"axis order of operand 1 ({order}) forces a copy of 960 kB: ")
        assert hint.endswith(f"; keep it as {wanted}")
    # The advice is right: the same values, kept like that, are read where they lie.
    kept = np.ascontiguousarray(right.transpose(1, 0, 2)).transpose(1, 0, 2)
    assert hints_of("ijk,kjl->il", left, kept) == ()


def test_many_short_calls_are_told():
    a = np.ones((2, 2))
    with einops_fast.profile() as seen:
        for _ in range(1100):
            fast_einsum("ij,jk->ik", a, a)
    [row] = seen.rows
    # Unless the machine is so slow that no call is short.
    if row.seconds < 3e-5:
        assert "1100 short calls" in row.hints[0]
    assert row.calls == 1100


SCRIPT = """
import sys
import numpy as np
np.einsum("ijk,kjl->il", np.ones((30, 40, 50)), np.ones((50, 40, 60)))
print(sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


def test_run_profiles_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = "run", "--profile", "--patch", "numpy", "--", script, 3
    done = run_python("-m", "einops_fast", *command, status=3)
    assert done.stdout == "['3']\n"
    assert "ijk,kjl->il" in done.stderr
    assert "keep it as j k l" in done.stderr


def test_run_wants_something_to_do(capsys):
    with pytest.raises(SystemExit):
        einops_fast.cli.main(["run", __file__])
    assert "--patch NAME, --profile or both" in capsys.readouterr().err


@given(data=st.data())
def test_any_equation_can_be_profiled(data):
    case = data.draw(cases())
    arrays = data.draw(operands(case.shapes))
    with einops_fast.profile() as seen:
        result = fast_einsum(case.equation, *arrays)
    np.testing.assert_array_equal(result, fast_einsum(case.equation, *arrays))
    assert sum(row.calls for row in seen.rows if not row.inside) == 1
    assert "1 call took" in str(seen)


def test_a_profile_says_who_called_and_what_was_left_to_native():
    def called(array):
        return np.einsum("ij,kj->ik", array, array)

    with patched("numpy"), profile() as seen:
        for _ in range(3):
            called(np.ones((64, 64)))
        np.einsum("ij->ji", np.ones((64, 64)), order="A")
    (row,) = seen.rows
    first = called.__code__.co_firstlineno
    assert (row.caller, row.calls) == (f"{Path(__file__).name}:{first + 1}", 3)
    assert row.native > 0
    assert 0 < row.total < seen.elapsed
    (left,) = seen.native
    assert (left.function, left.caller, left.calls) == ("numpy", f"{Path(__file__).name}:{first + 6}", 1)
    text = str(seen)
    assert left.reason in text
    assert row.caller in text
    assert "1 call left" in text


def test_no_native_time_is_told_of_another_dtype():
    with patched("numpy"), profile() as seen:
        np.einsum("ij,kj->ik", np.ones((64, 64)), np.ones((64, 64)), dtype=object)
    assert [row.native for row in seen.rows] == [None]


def test_a_profile_of_attention_under_the_patch(torch):
    q = torch.randn(1, 2, 3, 4)
    with profile() as seen, patched("torch.sdpa"):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert sum(row.calls for row in seen.native) + seen.attention_calls == 1
    assert "no einsum went through" not in str(seen)


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
