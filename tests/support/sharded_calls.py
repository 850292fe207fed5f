"""Calls on DTensors on four ranks, each against the same on one device: python sharded_calls.py STORE."""

import sys
from collections.abc import Callable

import sharded_einsum
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh


def cases() -> dict[str, Callable[[], None]]:
    four = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    return sharded_einsum.cases(four, square)


if __name__ == "__main__":
    run_ranks(4, sys.argv[1], cases)
