"""What is read of a recorded run, what can be tuned for, and that calls can be made again."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_calls import attention_call, einsum_call, layout, operator_call, written

from einops_fast import attention, fast_einsum, metrics, ops
from einops_fast.errors import EinsumError
from einops_fast.tune.recorded import read_calls


def test_a_table_or_a_folder_is_read_and_each_call_once(tmp_path: Path) -> None:
    calls = [einsum_call("ij,jk->ik", layout(3, 4), layout(4, 5)), operator_call("softmax", [layout(3, 4), None], 1)]
    path = written(tmp_path / "calls-1-0.csv", *calls, *calls)
    assert [call.what for call in read_calls(path)] == ["ij,jk->ik", "softmax"]
    written(tmp_path / "calls-2-0.csv", *calls, attention_call(*[layout(1, 4, 2, 8)] * 3))
    assert len(read_calls(tmp_path)) == 3


@pytest.mark.parametrize("content", [None, b"", b"label,calls\n", b"\xff\xfe"])
def test_no_table_is_one_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "calls.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        EinsumError,
        match=r"the table of calls can't be read|is no table of metrics|there are no calls in .*record some with",
    ):
        read_calls(path)


def _attend(x: Any) -> Any:
    y = x[:, :, :2]
    return attention("b i h d, b j g d, b j g e -> b i h e", x, y, y, causal=True, window=(3, 0), bias=x[0, 0, 0, :1])


CALLS: dict[str, Callable[[Any], Any]] = {
    "einsum": lambda x: fast_einsum("bihd,bjhd->bhij", x, x),
    "three": lambda x: fast_einsum("bihd,bjhd,bjhe->bihe", x, x, x, order="C"),
    "softmax": lambda x: ops.softmax(x, causal=True, temperature=0.5),
    "norm": lambda x: ops.layer_norm(x.transpose(2, 3), dim=2, weight=x[0, 0, 0], bias=x[0, 0, 0]),
    "sum and norm": lambda x: ops.dropout_add_layer_norm(x, x, p=0.0)[0],
    "activation": lambda x: ops.bias_gelu(x, x[0, 0, 0]),
    "linear": lambda x: ops.linear(x, x[0, :, 0], activation="silu"),
    "loss": lambda x: ops.cross_entropy(x[0, 0], torch.zeros(4, dtype=torch.long), label_smoothing=0.1),
    "loss of linear": lambda x: ops.linear_cross_entropy(x[0, 0], x[0, :, 0], torch.zeros(4, dtype=torch.long)),
    "attention": _attend,
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_call_can_be_made_again(tmp_path: Path, name: str, gradient: bool) -> None:
    """What is recorded while it is made again is what it was made from."""
    from einops_fast.backends.torch.beginning import differentiate
    from einops_fast.tune.again import numbers_like, run_of

    x = torch.randn(2, 5, 4, 8, requires_grad=gradient)
    with metrics.record(tmp_path / "first", ["calls"]):
        CALLS[name](x)
    recorded = read_calls(tmp_path / "first")
    call = recorded[0]
    with metrics.record(tmp_path / "again", ["calls"]), torch.set_grad_enabled(gradient):
        arrays = [None if each is None else numbers_like(each, "cpu") for each in call.arrays]
        result = run_of(call, arrays)(
            *(arrays if call.kind != "einsum" else [each for each in arrays if each is not None])
        )
        differentiate(result, arrays)
    if call.kind == "operator":  # what the front reads is skipped
        assert result is not None
    else:
        assert call in read_calls(tmp_path / "again")


def test_calls_that_fail_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from einops_fast.tune import again, here

    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(torch.cuda, "device", lambda number: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "H200")
    monkeypatch.setattr(here, "recall_rates", lambda name: name)
    monkeypatch.setattr(here.background, "take_all_processors", lambda: None)
    monkeypatch.setattr(here, "settle_all", lambda told: told("settled", 1, 1))
    make = again.numbers_like
    monkeypatch.setattr(again, "numbers_like", lambda layout, device: make(layout, "cpu"))
    calls = [
        einsum_call("bihd,bjhd->bhij", *[layout(2, 5, 4, 8, dtype="float32", gradient=True)] * 2),
        operator_call("dance", [layout(3, 4)]),
        operator_call("softmax", [layout(3, 4, gradient=True), None], 1, False, None, 0, 1.0, None),
        attention_call(*[layout(1, 4, 2, 8, dtype="float32", gradient=True)] * 3),
        einsum_call("ij->k", layout(3, 4)),
    ]
    failed = here.tune_here(calls, 0, lambda *given: told.append(given))
    assert [call for call, _ in failed] == [calls[1], calls[4]]
    assert failed[0][1] == "EinsumError: there is no operator 'dance' of torch's tensors"
    assert told == [*[("called", at, 5) for at in range(1, 6)], ("settled", True, True)]
