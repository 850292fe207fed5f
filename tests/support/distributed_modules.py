"""Two processes: modules of ours, and a Llama with them, under FSDP and DDP, against the same in one process.

python distributed_modules.py STORE
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ops_problems import where
from ranks import has_llama, small_llama
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from einops_fast import nn

WORLD = 2


class Block(torch.nn.Module):
    """Most of our modules, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attend = nn.QKVSelfAttention(16, 4, is_causal=True)
        self.rms = nn.RMSNorm(16)
        self.up = nn.FusedLinear(16, 24, activation="gelu")
        self.bias = nn.FusedDropoutBias(0.0, 24, "silu")
        self.down = nn.FusedLinear(24, 16)
        self.add = nn.DropoutAddLayerNorm(16, p=0.0)

    def forward(self, x: Any) -> Any:
        x = x + self.attend(self.norm(x))
        return self.add(self.down(self.bias(self.up(self.rms(x)))), x)


class Own(torch.nn.Module):
    """A language model of these."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(24, 16)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = nn.FusedLinear(16, 24)
        self.loss = nn.CrossEntropyLoss(z_loss=0.1)

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x).flatten(0, 1), ids.flatten())


class Llama(torch.nn.Module):
    """transformers' small one, with our functions or without."""

    def __init__(self, ours: bool = True) -> None:
        super().__init__()
        self.model = small_llama()
        self.blocks = self.model.model.layers
        if ours:
            assert len(nn.optimize(self.model).replaced) == 10

    def forward(self, ids: Any) -> Any:
        return self.model(input_ids=ids, labels=ids, use_cache=False).loss


def made(kind: Callable[[], Any]) -> Any:
    """The same in every process."""
    torch.manual_seed(0)
    return kind()


def data(rank: int) -> Any:
    return torch.randint(3, 24, (2, 7), generator=torch.Generator().manual_seed(rank))


def expected(kind: Callable[[], Any]) -> dict[str, Any]:
    """Gradients of the mean over all processes, in one."""
    model = made(kind)
    sum(model(data(rank)) for rank in range(WORLD)).div(WORLD).backward()
    return {name: each.grad for name, each in model.named_parameters()}


def check(model: Any, run: Any, rank: int, wanted: dict[str, Any], tolerance: float = 1e-5) -> None:
    """One step: every gradient, whole."""
    run(data(rank)).backward()
    for name, each in model.named_parameters():
        found = each.grad.full_tensor() if hasattr(each.grad, "full_tensor") else each.grad
        least = tolerance * float(wanted[name].abs().max()) + 1e-7
        torch.testing.assert_close(found, wanted[name], rtol=tolerance, atol=least)


def sharded(model: Any, mesh: Any, **options: Any) -> Any:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    kinds: dict[str, Callable[[], Any]] = {"own": Own}
    if has_llama():
        kinds["llama"] = Llama
    for name, kind in kinds.items():
        wanted = expected(kind)
        for by_kernels in (False, True) if name == "own" else (False,):
            with where(by_kernels):
                check(model := sharded(made(kind), mesh), model, rank, wanted, 1e-4 if by_kernels else 1e-5)
        check(model := made(kind), DistributedDataParallel(model), rank, wanted)
        sys.stdout.write(f"sharded {name}\n")  # at once: the other process prints, too
    if "llama" in kinds:
        assert nn.restore(sharded(made(Llama), mesh).model) == 10
        # The other way round: torch has made a class of its own of each block, in which modules are replaced.
        model = sharded(made(lambda: Llama(ours=False)), mesh)
        kept = {row.name: row for row in nn.optimize(model.model).rows}
        assert kept["model.layers.0.self_attn"].now
        check(model, model, rank, expected(Llama))
    dist.destroy_process_group()


if __name__ == "__main__":
    has_llama()  # imports it once
    other = os.fork()
    main(int(not other), sys.argv[1])
    # Gloo's threads outlive their group, and one that asks for the GIL while Python ends aborts the process.
    sys.stdout.flush()
    os._exit(os.waitpid(other, 0)[1] != 0 if other else 0)
