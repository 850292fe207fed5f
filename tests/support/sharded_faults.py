"""Two ranks, of which one is gone when the other calls: python sharded_faults.py STORE."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import placed
from torch.distributed.device_mesh import init_device_mesh

from einops_fast import fast_einsum


def main(rank: int, store: str) -> None:
    limit = timedelta(seconds=10)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    mesh = init_device_mesh("cpu", (2,))
    a, b = (placed(torch.ones(4, 4), mesh, "0") for _ in "ab")
    dist.barrier()
    if rank:
        os._exit(3)
    try:
        fast_einsum("ij,jk->ik", a, b)  # b is gathered
    except RuntimeError as error:
        print(f"raised {type(error).__name__}: {error}")


if __name__ == "__main__":
    other = os.fork()
    main(int(not other), sys.argv[1])
    sys.stdout.flush()
    os._exit(os.waitpid(other, 0)[1] >> 8 != 3)
