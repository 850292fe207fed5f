"""What holds of every operator along rows: by kernels in all layouts and dtypes, and by those that serve any size."""

from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
from ops_cases import ALONG, CASES, ROWS, first_result, tensors_of
from ops_problems import DEVICE, LAYOUTS, assert_near, check, kernels, leaf, randn

from einops_fast import EinsumError, autotune, ops
from einops_fast.backends.triton.rows.contest import Contest
from einops_fast.runtime.plan_cache import clear_plans
from einops_fast.runtime.tuning import ANY_SIZE


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ALONG)
def test_layouts(name: str, layout: str, dim: int) -> None:
    case = ALONG[name]
    sizes = 3, 18, 16 if dim == 1 else 5  # rows that go together, where neighbours are in different ones
    tensors = [leaf(each) for each in tensors_of(case.takes, *sizes, dtype="float32", layout=layout, dim=dim)]
    tensors[1:] = [leaf(torch.stack([each, each], -1)[:, 1]) for each in tensors[1:]]

    def native(x: Any, *others: Any) -> Any:
        found = _results(case.native(x.movedim(dim, -1), *others))
        return tuple([each.movedim(-1, dim) if each.dim() else each for each in found])

    found = check(partial(case.ours, dim=dim), native, tensors)
    if found[0].dim() == 3:  # nothing was copied into another order
        order = [sorted(range(3), key=lambda at: -each.stride(at)) for each in (tensors[0], found[0])]
        assert order[0] == order[1]


def _results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ROWS)
def test_precision(name: str, dtype: str) -> None:
    case = ROWS[name]
    check(case.ours, case.native, [leaf(each) for each in tensors_of(case.takes, 9, 200, dtype=dtype)])


@pytest.mark.parametrize("name", ROWS)
def test_expanded_and_empty(name: str) -> None:
    case = ROWS[name]
    x, *others = (leaf(each) for each in tensors_of(case.takes, 5, 7))
    check(case.ours, case.native, [leaf(x.detach()[:1].expand(5, 7)), *others])
    x = torch.empty(0, 7, dtype=torch.float64, device=DEVICE, requires_grad=True)
    with kernels(queued=False):
        results = _results(case.ours(x, *others))
    assert all(each.shape in ((), x.shape) for each in results)
    found = torch.autograd.grad(sum(each.sum() for each in results), [x, *others])
    assert not any(each.any() for each in found)


@pytest.mark.parametrize("name", CASES)
def test_functional_gradients(name: str) -> None:
    case = CASES[name]
    x, *others = tensors_of(case.takes, 6, 5)

    def cubes(function: Any, x: Any) -> Any:
        return first_result(function)(x, *others).pow(3).sum()

    with kernels(queued=False):  # torch follows its own functions alone
        found = torch.func.grad(partial(cubes, case.ours))(x)
    assert_near(found, torch.func.grad(partial(cubes, case.native))(x))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [*[((3, 5, 21), layout) for layout in LAYOUTS], ((2, 8, 24), "contiguous"), ((5, 3, 130), "contiguous")],
)
@pytest.mark.parametrize("name", ROWS)
def test_any_size(name: str, shape: tuple[int, ...], layout: str) -> None:
    """Also where tiles are longer than a row."""
    case = ROWS[name]
    tensors = [leaf(each) for each in tensors_of(case.takes, *shape, dtype="float32", layout=layout)]
    clear_plans()
    with autotune(ANY_SIZE):
        check(case.ours, case.native, tensors, factor=8.0, of_gradients=8.0)


@pytest.mark.parametrize("mode", ["never", ANY_SIZE])
def test_backward_has_the_mode_of_forward(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also out of the block, and in a thread of autograd's, which doesn't know of it."""
    modes = []
    call = Contest.__call__

    def told(self: Contest, *arrays: Any) -> None:
        modes.append(self.site.mode)
        assert mode != ANY_SIZE or len(self.ways) == 1
        call(self, *arrays)

    monkeypatch.setattr(Contest, "__call__", told)
    clear_plans()
    with kernels():
        with autotune(mode):
            result = ops.softmax(leaf(randn(4, 21)))
        thread = Thread(target=result.sum().backward)
        thread.start()
        thread.join()
    assert modes == [mode, mode]


def test_nobody_else_sets_the_mode() -> None:
    with pytest.raises(EinsumError, match="the mode of autotune is one of"):
        autotune("any" + " size")
