"""linear with its bias and activation in the epilogue of a product's kernel, and by the library."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from fused_steps import ON, fused_step
from gluon_on_cpu import boxes_on_cpu
from kernel_tensors import MEMORY
from ops_problems import DEVICE, LAYOUTS, Function, assert_near, check, gradients, kernels, laid_out, leaf, randn

from einops_fast import OperandError, ops
from einops_fast.backends.torch import backend as engine
from einops_fast.backends.torch.ops import linear as torch_linear
from einops_fast.backends.torch.ops.activation import activation_by_torch
from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.choice import StepProblem
from einops_fast.backends.triton.contraction.ways import BoxCandidate, Candidate
from einops_fast.backends.triton.launching.launch import copies_boxes
from einops_fast.ops.checks import ACTIVATIONS
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.steps import Fused


def finished_step(tensors: Sequence[Any], activation: str, keeps: bool = False) -> Fused:
    """The step of ``linear`` for an input, a weight and perhaps a bias."""
    x, _, *bias = tensors
    leading = "abc"[: x.dim() - 1]
    step = fused_step(f"{leading}k,nk->{leading}n", tensors[:2]).replace(any_order=False)
    strides = (0,) * (x.dim() - 1) + bias[0].stride() if bias else None
    return step.replace(epilogue=Epilogue(activation, strides, keeps))


def finished(way: Candidate, tensors: Sequence[Any], keeps: bool) -> tuple[Any, ...]:
    found = way.run(MEMORY, 0)(*tensors)
    return found if keeps else (found,)


on_hopper = pytest.mark.skipif(DEVICE == "cpu" or not copies_boxes(), reason="needs a Hopper GPU")


def check_ways(ways: Sequence[Candidate], tensors: Sequence[Any], activation: str, keeps: bool) -> None:
    """Results, and what they are of if that is kept, against float64, and against torch in the same precision."""
    assert ways
    exact = torch.nn.functional.linear(*(each.double() for each in tensors))
    native = torch.nn.functional.linear(*tensors)
    for way in ways:
        found, *before = finished(way, tensors, keeps)
        assert len(before) == keeps
        expected = activation_by_torch(exact, None, activation)
        assert_near(found, expected, activation_by_torch(native, None, activation))
        if keeps:
            assert_near(before[0], exact, native)


@pytest.mark.parametrize(
    ("activation", "dtype", "keeps", "sizes"),
    [
        *((activation, "float16", False, (18, 20, 17)) for activation in ACTIVATIONS),
        *((activation, "float32", True, (18, 20, 17)) for activation in ACTIVATIONS),
        ("gelu_tanh", "float64", True, (20, 17, 33)),
        ("gelu_tanh", "bfloat16", True, (20, 17, 33)),
        ("gelu", "float16", True, (40, 16, 48)),  # columns in two parts
    ],
)
def test_every_activation(activation: str, dtype: str, keeps: bool, sizes: tuple[int, int, int]) -> None:
    """With the sums kept and a bias, and without."""
    rows, depth, columns = sizes
    tensors = [2 * randn(2, rows // 2, depth, dtype=dtype), randn(columns, depth, dtype=dtype)]
    tensors += [randn(columns, dtype=dtype)] * keeps
    found = kernel_candidates(finished_step(tensors, activation, keeps), dtype, ON)
    chosen = found[:1] if columns != 48 else [way for way in found if "×48×" in way.name][:2]
    check_ways(chosen, tensors, activation, keeps)


@pytest.mark.parametrize("layout", [*LAYOUTS, "expanded"])
@pytest.mark.parametrize(("rows", "columns"), [(9, 17), (3, 33)])
def test_layouts(layout: str, rows: int, columns: int) -> None:
    """Also where the operands change places, so that the bias is along rows, and where columns are in two parts."""
    values = [randn(2, rows, 24, dtype="float16"), randn(columns, 24, dtype="float16"), randn(columns, dtype="float16")]
    if layout == "expanded":
        tensors = [values[0][:1].expand(2, rows, 24), values[1], values[2][:1].expand(columns)]
    else:
        tensors = [laid_out(each, layout) for each in values]
    found = kernel_candidates(finished_step(tensors, "silu", True), "float16", ON)
    check_ways([found[0], found[len(found) // 2]], tensors, "silu", True)


@pytest.mark.parametrize(
    ("activation", "keeps", "sizes", "biased"),
    [
        ("gelu", False, (264, 600, 840), True),  # all of a tile's activation beside the next one's products
        ("gelu", True, (300, 296, 72), True),  # hardly any of it; columns in two parts
        ("gelu_tanh", False, (264, 520, 264), False),
        ("none", True, (600, 304, 328), False),
    ],
)
def test_boxes_on_a_cpu(
    activation: str, keeps: bool, sizes: tuple[int, int, int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tiling, with several tiles for each program, which follow each other there as on a GPU."""
    monkeypatch.setattr(candidates, "_BOXES_WORTH_TRYING", 20)
    rows, columns, depth = sizes
    tensors = [torch.randn(rows, depth), torch.randn(columns, depth) / 8, torch.randn(columns)]
    tensors = [each.half() for each in tensors[: 2 + biased]]
    with boxes_on_cpu(2):
        found = boxes_for(tensors, activation, keeps)
        assert len({(way.tiling.groups, way.tiling.width, way.tiling.rest) for way in found}) > 5
        check_ways(found, tensors, activation, keeps)


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """``linear`` is run by the first kernel of ours, on whatever device; the names of those that ran."""
    ran: list[str] = []

    def choose(self: StepProblem, arrays: Sequence[Any]) -> Any:
        way = kernel_candidates(self.step, self.memory.dtype(arrays[0]), ON, self.precision)[0]
        if self.step.epilogue is not None:
            ran.append(way.name)
        return way

    monkeypatch.setattr(StepProblem, "decide", choose)
    monkeypatch.setattr(choice_module, "_small", lambda _: False)
    everything = frozenset({"float16", "bfloat16", "float32", "float64"})
    monkeypatch.setattr(engine, "kernel_dtypes", lambda _: everything)
    torch_linear._way.cache_clear()
    yield ran
    torch_linear._way.cache_clear()


def by_torch(activation: str) -> Function:
    return lambda *tensors: activation_by_torch(torch.nn.functional.linear(*tensors), None, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("biased", [False, True])
def test_gradients(by_kernels: list[str], activation: str, biased: bool) -> None:
    tensors = [leaf(randn(2, 4, 20)), leaf(randn(9, 20, seed=1)), leaf(randn(9, seed=2)) if biased else None]
    check(partial(ops.linear, activation=activation), by_torch(activation), tensors)
    assert by_kernels


@pytest.mark.parametrize("wanting", range(3))
def test_some_gradients(by_kernels: list[str], wanting: int) -> None:
    tensors = [laid_out(randn(3, 8, 10), "reversed"), laid_out(randn(17, 10, seed=1), "sliced"), randn(17, seed=2)]
    tensors[wanting] = leaf(tensors[wanting])
    check(partial(ops.linear, activation="gelu"), by_torch("gelu"), tensors)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(7,), (1, 7), (2, 3, 7)])
def test_by_the_library(shape: tuple[int, ...], activation: str) -> None:
    """What is too small for a kernel, or has one row: with the same results, also where the library has it in one."""
    tensors = [leaf(randn(*shape)), leaf(randn(5, 7)), leaf(randn(5))]
    with kernels(activation != "none"):
        found = gradients(partial(ops.linear, activation=activation), tensors)
        with torch.no_grad():
            alone = ops.linear(*tensors, activation=activation)
            unbiased = ops.linear(*tensors[:2], activation=activation)
    expected = gradients(by_torch(activation), tensors)
    assert_near(found, expected)
    assert_near(alone, expected[0])
    product = torch.nn.functional.linear(*(each.double() for each in tensors[:2]))
    assert_near(unbiased, activation_by_torch(product, None, activation))


def test_two_dtypes_as_torch() -> None:
    x, weight, bias = randn(4, 5, dtype="float32"), randn(3, 5, dtype="float32"), randn(3)
    with kernels():
        assert ops.linear(x, weight, bias, activation="relu").dtype == torch.float32
    with kernels(False), pytest.raises(OperandError, match=r"^weight has dtype float64, input float32"):
        ops.linear(x, weight.double(), activation="relu")


def boxes_for(tensors: Sequence[Any], activation: str, keeps: bool) -> list[Candidate]:
    """The ways that have boxes copied by the hardware."""
    dtype = str(tensors[0].dtype)[6:]
    found = kernel_candidates(finished_step(tensors, activation, keeps), dtype, ON)
    return [way for way in found if isinstance(way, BoxCandidate)]


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("keeps", [False, True])
def test_boxes(activation: str, keeps: bool) -> None:
    """Of both widths, with rows and columns that no box divides, and the bias along either."""
    for rows, columns, dtype in ((1000, 520, "bfloat16"), (200, 1096, "float16")):
        tensors = [randn(rows, 264, dtype=dtype), randn(columns, 264, dtype=dtype) / 8, randn(columns, dtype=dtype)]
        for given in (tensors, tensors[:2]) if activation == "gelu" else (tensors,):
            check_ways(boxes_for(given, activation, keeps)[:2], given, activation, keeps)


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["reversed", "permuted", "expanded", "unaligned"])
def test_boxes_of_any_layout(layout: str) -> None:
    dtype = "bfloat16"
    x, weight, bias = randn(6, 160, 192, dtype=dtype), randn(288, 192, dtype=dtype) / 8, randn(288, dtype=dtype)
    tensors = {
        "reversed": [laid_out(x.flatten(0, 1), layout), laid_out(weight, layout), bias],
        "permuted": [x.transpose(0, 1).contiguous().transpose(0, 1), weight, bias],
        "expanded": [x, weight, bias[:1].expand(288)],
        "unaligned": [x, weight, torch.cat([bias[:1], bias])[1:]],
    }[layout]
    check_ways(boxes_for(tensors, "gelu", True), tensors, "gelu", True)


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("keeps", [False, True])
def test_boxes_of_many_tiles_give_the_same_bits_again(keeps: bool) -> None:
    tensors = [randn(4096, 512, dtype="bfloat16"), randn(4096, 512, dtype="bfloat16") / 8, randn(4096).bfloat16()]
    for way in boxes_for(tensors, "gelu", keeps):
        first = finished(way, tensors, keeps)
        check_ways([way], tensors, "gelu", keeps)
        assert all(all(map(torch.equal, first, finished(way, tensors, keeps))) for _ in range(5))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_chosen_by_measurement(activation: str, dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    torch_linear._way.cache_clear()
    tensors = [
        leaf(randn(2, 640, 512, dtype=dtype)),
        leaf(randn(1024, 512, dtype=dtype)),
        leaf(randn(1024).to(dtype=getattr(torch, dtype))),
    ]
    found = gradients(partial(ops.linear, activation=activation), tensors)
    exact = gradients(by_torch(activation), [leaf(each.detach().double()) for each in tensors])
    assert_near(found, exact, gradients(by_torch(activation), tensors), 3.0)
