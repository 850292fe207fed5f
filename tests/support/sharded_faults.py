"""Two ranks, of which one is out of memory, and then gone, when the other calls: python sharded_faults.py STORE."""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from ranks import placed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from einops_fast import attention, fast_einsum
from einops_fast.backends.torch.sharding import attention as sharding
from einops_fast.backends.torch.sharding import sequence

SECONDS = 3
PATTERN = "b h i d, b h j d, b h j e -> b h i e"


def by(form: str, *arrays: Any) -> Any:
    sharding._calls.clear()
    with mock.patch.object(sharding, "cheapest", return_value=form):
        return attention(PATTERN, *arrays)


def fails(name: str, call: Callable[[], Any]) -> None:
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        print(f"{name} raised {type(error).__name__} after {time.monotonic() - begin:.1f} s: {error}")


def main(rank: int, store: str) -> None:
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    mesh = init_device_mesh("cpu", (2,))
    a, b = (placed(torch.ones(4, 4), mesh, "0") for _ in "ab")
    q = placed(torch.ones(1, 2, 4, 4), mesh, "2").requires_grad_()
    # Others than those whose group is closed after the first failure.
    groups = [dist.new_group(ranks, timeout=limit) for ranks in ([0, 1], [0], [1])]
    apart = DeviceMesh.from_group([groups[0], groups[1 + rank]], "cpu", [[0], [1]], mesh_dim_names=("one", "other"))
    p = placed(torch.ones(1, 2, 4, 4), apart, "2r").requires_grad_()
    made = {form: by(form, q, q, q).sum() for form in ("ring", "heads")}
    dist.barrier()
    if rank:
        failure = torch.OutOfMemoryError("no memory left")
        with mock.patch.object(sequence, "attend", side_effect=failure):
            fails("full", lambda: by("ring", p, p, p))
        sys.stdout.flush()
        time.sleep(SECONDS + 2)
        os._exit(3)
    fails("beside the full one", lambda: by("ring", p, p, p).sum().backward())
    time.sleep(3)
    fails("einsum", lambda: fast_einsum("ij,jk->ik", a, b))  # b is gathered
    for form, result in made.items():
        fails(f"gradients by {form}", result.backward)
        fails(form, partial(by, form, q, q, q))


if __name__ == "__main__":
    other = os.fork()
    main(int(not other), sys.argv[1])
    sys.stdout.flush()
    os._exit(os.waitpid(other, 0)[1] >> 8 != 3)
