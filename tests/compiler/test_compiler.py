"""The backend of torch.compile: what it keeps of a program, and what it tells."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_programs import Graphs, attend, check, operands

import einops_fast
from einops_fast import fusions, metrics
from einops_fast.observing.metrics_summary import summarize

pytestmark = pytest.mark.usefixtures("nothing_compiled")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", ["scores", "scores there and back", "softmax"])
def test_numbers_that_hide_are_converted_with_the_scores(dtype: torch.dtype, way: str) -> None:
    """The least number of float32 is ``-inf`` in a narrower dtype."""

    def program(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = (q @ k.mT).masked_fill(~mask, torch.finfo(torch.float32).min)
        scores = scores.to(dtype) if way != "softmax" else scores
        scores = scores.float() if way == "scores there and back" else scores
        return scores.softmax(-1, dtype=dtype if way == "softmax" else None).float() @ v

    q, k, v = operands()
    mask = torch.ones(2, 3, 6, 6, dtype=torch.bool)
    mask[0, :, 2] = False
    mask[1, ..., 3:] = False
    with fusions() as log:
        found = einops_fast.compile(program, then="eager")(q, k, v, mask)
    assert len(log.fused) == 1
    torch.testing.assert_close(found, program(q, k, v, mask), rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("below", [False, True])
def test_queries_of_padding_see_what_is_hidden_least(below: bool) -> None:
    """Where two large numbers are added up, keys that are hidden once are seen by rows that have no others."""

    def padded(q: Any, k: Any, v: Any, padding: Any) -> Any:
        scores = q @ k.mT
        scores = scores.masked_fill(padding, -1e9) if below else scores + padding.to(q.dtype) * -1e9
        return (scores + torch.full((6, 6), -1e9).triu(1)).softmax(-1) @ v

    padding = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    padding[0, ..., :2] = True
    given = operands()
    with fusions() as log:
        found = einops_fast.compile(padded, then="eager")(*given, padding)
    torch.testing.assert_close(found, padded(*given, padding))
    assert len(log.fused) == (not below)


def test_dtypes_are_as_written() -> None:
    q, k, v = operands(dtype=torch.bfloat16)
    with fusions() as log:
        compiled = einops_fast.compile(attend, then="eager")
        found = compiled(q, k, v)
        with torch.autocast("cpu", torch.bfloat16):
            cast = compiled(*operands())
            native = attend(*operands())
    assert len(log.fused) == 2
    assert found.dtype == torch.bfloat16
    assert cast.dtype == native.dtype == torch.bfloat16
    torch.testing.assert_close(cast, native, rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(found, attend(q, k, v), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("temperature", [1e-7, 1e6])
def test_a_temperature_that_half_precision_has_no_room_for_multiplies_the_scores(
    temperature: float, within: bool
) -> None:
    def program(q: Any, k: Any, v: Any, temperature: Any) -> Any:
        scores = q.float() @ k.float().mT if within else (q @ k.mT).float()
        return (scores * temperature / 1e6).softmax(-1).to(v.dtype) @ v

    given = *operands(dtype=torch.float16), torch.full((1, 1, 1), temperature)
    found = einops_fast.compile(program, then="eager")(*given)
    torch.testing.assert_close(found, program(*given), rtol=1e-2, atol=1e-2)


def test_logarithms_beside_a_bias_that_hides_all_keys_of_a_row_have_its_gradients() -> None:
    def program(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = q @ k.mT + bias
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    q, k, v = operands()
    bias = torch.zeros(q.shape[-2], k.shape[-2])
    bias[1] = torch.finfo(torch.float32).min
    gradients = []
    for run in (program, einops_fast.compile(program, then="eager")):
        result, logs = run(q, k, v, bias)
        gradients.append(torch.autograd.grad(result.sum() + logs[..., 1].sum(), (q, k, v)))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_inductor_gets_the_rest() -> None:
    def layer(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.gelu(attend(q, k, v).flatten(2)).sum(-1)

    with fusions() as log:
        compiled = einops_fast.compile(layer, options={"max_autotune": False})
        for length in (6, 9, 11):
            given = operands(2, 3, length, 8)
            found, expected = compiled(*given), layer(*given)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            own = torch.autograd.grad(found.sum(), given)
            torch.testing.assert_close(own, torch.autograd.grad(expected.sum(), given), rtol=1e-3, atol=1e-4)
    # Once, and with sizes that change once more for all others.
    assert len(log.fused) == 2
    assert not log.missed


def test_the_call_is_on_views_as_they_lie() -> None:
    """Nothing is copied: what is projected at once stays in one tensor."""
    graphs = Graphs()

    def layer(x: Any) -> Any:
        q, k, v = x.view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4).contiguous()
        return (torch.softmax(q @ k.transpose(-2, -1), -1) @ v).transpose(1, 2).reshape(2, 6, 32)

    einops_fast.compile(layer, then=graphs)(torch.randn(2, 6, 96))
    assert not graphs.calls("matmul")
    assert not graphs.calls("transpose")
    (call,) = graphs.calls("call_attention")
    assert call.kwargs["pattern"] == "a b c d, a b e d, a b e f -> a c b f"


@pytest.mark.parametrize("written", [False, True])
def test_a_result_may_be_viewed_as_the_program_lays_it_out(written: bool) -> None:
    def layer(q: Any, k: Any, v: Any) -> Any:
        weights = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
        result = torch.einsum("bhij,bjhd->bihd", weights, v)
        rows = result.transpose(1, 2).view(-1, 8)
        if written:
            rows.mul_(2)
        return rows, result + 1

    given = torch.randn(3, 2, 6, 3, 8)
    assert not layer(*given)[1].is_contiguous()
    assert [each.reason for each in check(layer, [*given]).missed] == (["mutation"] if written else [])


def test_what_nobody_reads_and_what_is_written_stays() -> None:
    """A graph may do more than return results."""

    def writes(q: Any, k: Any, v: Any, out: Any) -> Any:
        out.add_(1)
        return attend(q, k, v)

    out = torch.zeros(3)
    einops_fast.compile(writes, then="eager")(*operands(), out)
    assert out.tolist() == [1, 1, 1]


def test_a_graph_without_attention_is_handed_on_as_it_is() -> None:
    before, after = Graphs(), Graphs()

    def plain(x: Any) -> Any:
        return torch.softmax(x @ x.mT, -1) + 1

    torch.compile(plain, backend=before)(torch.ones(3, 4))
    torch._dynamo.reset()
    with fusions() as log:
        einops_fast.compile(plain, then=after)(torch.ones(3, 4))
    assert before[0].code == after[0].code
    assert not log.fused
    assert not log.missed


def test_a_log_says_where_and_of_what_size() -> None:
    def both(q: Any, k: Any, v: Any) -> Any:
        weights = (q @ k.mT).softmax(-1)
        return attend(q, k, v), weights @ v, weights

    log, again = check(both, operands()), check(both, operands())
    (fused,), (missed,) = log.fused, log.missed
    assert {fused, *again.fused} == {fused}
    assert Path(fused.where.rpartition(":")[0]).name == "fused_programs.py"
    assert fused.sizes == {"a": 2, "b": 3, "c": 6, "d": 8, "e": 6, "f": 8}
    assert fused.saved == 4 * 4 * 2 * 3 * 6 * 6
    assert (missed.reason, missed.at) == ("value used elsewhere", "weights")
    assert "value used elsewhere" in str(log)


def test_metrics_have_a_table_of_fusions(tmp_path: Path) -> None:
    with metrics.record(tmp_path, ["fusions"]):
        einops_fast.compile(attend, then="eager")(*operands())
    (row,) = metrics.read(tmp_path)["fusions"]
    assert (row["what"], row["fused"], row["reason"]) == ("attention", "1", "")
    assert summarize(tmp_path).split()[-3:] == ["1", "attention", "fused"]


def test_the_command_runs_a_program_and_prints_what_was_fused(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\n"
        "def attend(q, k, v):\n"
        "    return (q @ k.mT).softmax(-1) @ v\n"
        "print(torch.compile(attend, options={'then': 'eager'})(*torch.ones(3, 2, 5, 4)).shape)\n"
    )
    command = [sys.executable, "-m", "einops_fast", "fusions", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([2, 5, 4])"
    assert "fused  attention" in done.stderr
    assert "program.py:3" in done.stderr


def test_importing_the_package_imports_no_torch() -> None:
    script = "import sys, einops_fast; einops_fast.compile, einops_fast.fusions; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_checkpointed_layer_is_fused_within() -> None:
    from torch.utils.checkpoint import checkpoint

    def layer(q: Any, k: Any, v: Any) -> Any:
        return checkpoint(attend, q, k, v, use_reentrant=False) * 2

    assert len(check(layer, operands(), then="aot_eager").fused) == 1


def test_contractions_of_ours_are_read_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from einops_fast import fast_einsum
    from einops_fast.runtime import traced

    monkeypatch.setattr(traced, "_WITH_OPERATOR", ("cpu", "cuda"))

    def ours(q: Any, k: Any, v: Any) -> Any:
        scores = fast_einsum("b head i d, b head j d -> b head i j", q, k)
        return fast_einsum("b head i j, b head j e -> b i head e", scores.softmax(-1), v)

    log = check(ours, operands())
    assert len(log.fused) == 1, str(log)
