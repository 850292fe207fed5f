"""Modules of ours in several processes: gradients under FSDP and DDP are those of one process."""

from pathlib import Path

import pytest
import torch
from python_process import SUPPORT, run_python

pytest.importorskip("triton")


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
def test_gradients_in_two_processes(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("what Triton interprets is on a CPU")
    pytest.importorskip("torch.distributed.fsdp", reason="no FSDP").fully_shard  # noqa: B018
    process = SUPPORT / "distributed_modules.py", tmp_path / "store"
    done = run_python(*process, TRITON_INTERPRET=1, GLOO_SOCKET_IFNAME="lo")
    assert done.stdout.count("sharded own") == 2
