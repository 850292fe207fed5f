"""Calls on DTensors: on four processes, whose cases are in `support/sharded_*.py`."""

import importlib
import time
from pathlib import Path

import pytest
import torch.distributed
from python_process import SUPPORT, run_python

import einops_fast.backends
from einops_fast import limited

assert torch.distributed.is_available()


def test_calls_on_dtensors_are_those_on_one_device(tmp_path: Path) -> None:
    done = run_python(SUPPORT / "sharded_calls.py", tmp_path / "store", path=[SUPPORT])
    assert done.stdout.count("is right") > 160


def test_models_train_as_on_one_device_and_compiled_calls_are_right(tmp_path: Path) -> None:
    done = run_python(SUPPORT / "sharded_training.py", tmp_path / "store", path=[SUPPORT])
    assert done.stdout.count("is right") >= 2


def test_a_rank_that_is_out_of_memory_or_dies_is_an_error_in_the_others(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = run_python(SUPPORT / "sharded_faults.py", tmp_path / "store", path=[SUPPORT])
    assert "full raised OutOfMemoryError" in done.stdout
    for call in ("beside the full one", "einsum", "gradients by ring", "ring", "gradients by heads", "heads"):
        assert f"\n{call} raised " in f"\n{done.stdout}", done.stdout
    assert "Connection" in done.stdout.partition("\neinsum raised ")[2]  # that the other rank closed
    assert time.monotonic() - begin < 300  # no rank waits for ever


def test_plain_tensors_are_those_of_the_usual_backend() -> None:
    assert einops_fast.backends.backend_for_type(torch.Tensor) is einops_fast.backends.get_backend("torch")


def test_a_rank_that_is_out_of_memory_begins_no_collectives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = importlib.import_module("einops_fast.backends.torch.backend").sharded_backend()
    monkeypatch.setattr(limited, "own_arrays", lambda arrays, out=None: (sharded, arrays))
    monkeypatch.setattr(limited, "slicing_of", lambda *given, **options: pytest.fail("it was cut into pieces"))
    failure = torch.cuda.OutOfMemoryError("CUDA out of memory")
    options = {"dtype": None, "order": "K", "casting": "safe", "optimize": "auto"}
    with pytest.raises(torch.cuda.OutOfMemoryError):
        limited.answer(failure, ("ij,jk->ik", torch.ones(2, 3), torch.ones(3, 4)), None, options)
