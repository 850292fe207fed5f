"""Calls on DTensors on four ranks, each against the same on one device: python sharded_calls.py STORE [FAMILY ...]."""

import sys
from collections.abc import Callable
from importlib import import_module

import sharded_attention  # noqa: F401 (before processes are forked)
import sharded_einsum  # noqa: F401
import sharded_ops  # noqa: F401
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh


def cases() -> dict[str, Callable[[], None]]:
    four = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    found: dict[str, Callable[[], None]] = {}
    for family in sys.argv[2:] or ("einsum", "ops", "attention"):
        found |= import_module(f"sharded_{family}").cases(four, square)
    return found


if __name__ == "__main__":
    run_ranks(4, sys.argv[1], cases)
