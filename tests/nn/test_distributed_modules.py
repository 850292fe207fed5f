"""Modules of ours in several processes: gradients under FSDP and DDP are those of one process."""

from concurrent.futures import ThreadPoolExecutor
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

    def run(rank: int) -> str:
        process = SUPPORT / "distributed_modules.py", rank, tmp_path / "store"
        return run_python(*process, TRITON_INTERPRET=1, GLOO_SOCKET_IFNAME="lo").stdout

    with ThreadPoolExecutor(2) as both:
        assert all("sharded own" in printed for printed in both.map(run, range(2)))
