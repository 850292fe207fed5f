"""Modules of ours in several processes: gradients under FSDP and DDP are those of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.skipif(not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="no gloo")
def test_gradients_in_two_processes(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("what Triton interprets is on a CPU")
    pytest.importorskip("torch.distributed.fsdp", reason="no FSDP").fully_shard  # noqa: B018
    support = Path(__file__).parents[1] / "support"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(support.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [sys.executable, str(support / "distributed_modules.py")]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (found, errors) in zip(processes, printed, strict=True):
        assert process.returncode == 0, errors[-3000:]
        assert "sharded own" in found
