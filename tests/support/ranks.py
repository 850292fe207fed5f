"""Several processes of one program that are the ranks of a group, on a CPU.

Import what takes long before :func:`run_ranks`, which forks.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

for _name in ("attention", "backend", "ops"):  # before processes are forked
    import_module(f"einops_fast.backends.torch.sharding.{_name}")


def run_ranks(world: int, store: str, cases: Callable[[], dict[str, Callable[[], None]]], seconds: int = 20) -> None:
    """Run all cases in each process; the status is 1 if one failed, whose traceback is printed."""
    others = []
    rank = 0
    for each in range(1, world):
        child = os.fork()
        if not child:
            rank, others = each, []
            break
        others.append(child)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds)
    )
    failed = 0
    try:
        for name, case in cases().items():
            torch.manual_seed(0)
            begin = time.monotonic()
            try:
                case()
                if not rank:
                    print(f"{name} is right, in {time.monotonic() - begin:.2f} s")
            except Exception:
                failed += 1  # other ranks wait for this one: nothing after it says anything
                print(f"{name} failed on rank {rank}\n{traceback.format_exc()}", file=sys.stderr)
                break
    finally:
        # Gloo's threads outlive their group, and one that asks for the GIL while Python ends aborts the process.
        for child in others:
            failed += os.waitpid(child, 0)[1] != 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failed > 0)


def has_llama() -> bool:
    """Whether transformers is there, in a version whose modules ours replace; imports it."""
    try:
        import transformers
    except ImportError:
        return False
    return int(transformers.__version__.partition(".")[0]) >= 5


def small_llama() -> Any:
    """transformers' own, the same on every rank."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def placements(text: str) -> list[Any]:
    """A digit for an axis that is sharded, ``r`` for replicas, ``p`` for sums that are pending; for each dimension."""
    known = {"r": Replicate(), "p": Partial()}
    return [known[each] if each in known else Shard(int(each)) for each in text]


def spelled(array: Any) -> str:
    """The same of a DTensor."""
    return "".join(str(each.dim) if each.is_shard() else "p" if each.is_partial() else "r" for each in array.placements)


def placed(array: Any, mesh: Any, text: str) -> Any:
    """A leaf with these placements whose value is that of ``array``."""
    wanted = placements(text)
    whole = [Replicate() if each.is_partial() else each for each in wanted]
    found = distribute_tensor(array.detach(), mesh, whole)
    if whole != wanted:
        local, total, mine = found.to_local(), 1, 0
        for dim, each in enumerate(wanted):
            if each.is_partial():
                mine, total = mine + mesh.get_local_rank(dim) * total, total * mesh.size(dim)
        # Numbers that don't cancel: parts of different sizes.
        part = local * (mine + 1.0) / (total * (total + 1) / 2)
        found = DTensor.from_local(part, mesh, wanted, shape=array.shape, stride=array.contiguous().stride())
    return found.detach().requires_grad_(array.requires_grad)


def same(found: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    """Compare a DTensor, or a gradient, with a tensor."""
    if isinstance(found, DTensor):
        found = found.full_tensor()
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def randoms(shapes: str) -> list[Any]:
    """Leaves of such shapes, as in ``"8 4, 4 6"``."""
    return [
        torch.randn([*map(int, shape.split())], dtype=torch.float64).requires_grad_() for shape in shapes.split(",")
    ]


def agree(
    mesh: Any, run: Callable[..., Any], values: Sequence[Any], given: str, result: str | None = None,
    collectives: dict[str, int] | None = None, tolerance: float = 1e-10, reference: Callable[..., Any] | None = None,
) -> "Traffic":  # fmt: skip
    """Compare a call of arrays that are placed as is ``given``, and its gradients, with the same of tensors.

    The call is made twice: by what is kept, too. Its results are placed as ``result`` says, if it does, with these
    ``collectives``; the second call's traffic is returned.
    """
    texts = [each.strip() for each in given.split(",")]
    wanted = (reference or run)(*values)
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    weights = [torch.where(each.isfinite(), torch.randn_like(each), 0.0) for each in several]
    total = sum((each.nan_to_num(0, 0, 0) * weight).sum() for each, weight in zip(several, weights, strict=True))
    leaves = [each for each in values if each.requires_grad]
    gradients = torch.autograd.grad(total, leaves)
    for _ in range(2):
        arrays = [placed(value, mesh, text) for value, text in zip(values, texts, strict=True)]
        with Traffic() as traffic:
            found = run(*arrays)
        total = torch.zeros((), dtype=torch.float64)
        for ours, theirs, weight in zip(found if isinstance(found, tuple) else (found,), several, weights, strict=True):
            assert ours.shape == theirs.shape
            assert result in (None, spelled(ours)), spelled(ours)
            same(ours, theirs.detach(), tolerance)
            total = total + (ours.full_tensor().nan_to_num(0, 0, 0) * weight).sum()
        assert collectives in (None, traffic.calls), traffic.calls
        total.backward()
        wants = [(array, text) for array, text in zip(arrays, texts, strict=True) if array.requires_grad]
        for (array, text), gradient in zip(wants, gradients, strict=True):
            assert spelled(array.grad) == text.replace("p", "r")
            same(array.grad, gradient, tolerance)
    return traffic


class Traffic(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts collectives by name, and the bytes that each rank gets of them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # what torch makes of the call on local tensors comes here
        result = function(*args, **(kwargs or {}))
        name = str(function).split(".")[1]
        if "c10d" in function.namespace and not name.startswith(("wait", "_wrap")):
            self.calls[name] = self.calls.get(name, 0) + 1
            got = result if isinstance(result, torch.Tensor) else args[0]  # those in place return what waits
            self.bytes += got.numel() * got.element_size()
        return result
