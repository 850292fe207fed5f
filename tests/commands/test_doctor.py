"""``einops-fast doctor``: what is there, what is missing, and that it finds what is wrong."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from optional_mxnet import mxnet_or_skip

from einops_fast.cli import main
from einops_fast.commands import doctor
from einops_fast.runtime import disk_cache

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Any, monkeypatch: Any) -> Any:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def findings(capsys: Capture, status: int = 0) -> dict[str, tuple[str, str]]:
    assert main(["doctor", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is (status == 0)
    return {each["what"]: (each["state"], each["told"]) for each in found["findings"]}


def only(monkeypatch: Any, *names: str) -> None:
    """Have packages be found that are named here, and no others."""
    monkeypatch.setattr(doctor, "find_spec", lambda name: name in names or None)


def test_says_what_is_there_and_what_is_missing(capsys: Capture, monkeypatch: Any, cache: Any) -> None:
    only(monkeypatch)
    monkeypatch.setattr(doctor, "gpu_properties", lambda: ())
    monkeypatch.setattr(doctor, "installed_version", lambda: "2.9.1")
    found = findings(capsys)
    assert {name for name, (state, _) in found.items() if state == "missing"} == {
        "torch", "cupy", "mxnet", "rich", "shtab", "GPU"
    }  # fmt: skip
    assert found["torch"][1] == "optional: pip install 'einops_fast[torch]'"
    assert found["triton"] == ("too old", "2.9.1; the GPU kernels need 3.6 or later")
    assert found["cache"] == ("ok", f"{cache}, 0 files, 0.0 MB, writable")
    assert found["check numpy cpu"][1].startswith("contraction off by")
    assert main(["doctor"]) == 0
    assert "pip install 'einops_fast[torch]'" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["torch", "mxnet"])
def test_checks_each_backend(name: str, capsys: Capture, monkeypatch: Any) -> None:
    mxnet_or_skip() if name == "mxnet" else pytest.importorskip(name)
    only(monkeypatch, name)
    assert findings(capsys)[f"check {name} cpu"][0] == "ok"


def test_wrong_numbers_fail(capsys: Capture, monkeypatch: Any) -> None:
    only(monkeypatch)
    right = doctor.attention
    monkeypatch.setattr(doctor, "attention", lambda *arrays: right(*arrays) * 1.001)
    assert findings(capsys, 1)["check numpy cpu"][0] == "failed"


def test_a_framework_that_is_broken_fails(capsys: Capture, monkeypatch: Any) -> None:
    def broken(*_: str) -> Any:
        raise ImportError("first line\nlibcudart.so.13: cannot open")

    only(monkeypatch)
    monkeypatch.setattr(doctor, "_conversions", broken)
    assert findings(capsys, 1)["check numpy cpu"] == ("failed", "ImportError: libcudart.so.13: cannot open")


def test_a_cache_that_is_no_folder_fails(capsys: Capture, monkeypatch: Any, cache: Any) -> None:
    only(monkeypatch)
    monkeypatch.setattr(doctor, "gpu_properties", lambda: (SimpleNamespace(name="NVIDIA H200"),))
    monkeypatch.setattr(disk_cache, "_known_trouble", set())
    cache.write_text("mine")
    state, told = findings(capsys, 1)["cache"]
    assert (state, "EINOPS_FAST_CACHE_DIR" in told) == ("failed", True)


def test_gpus_and_their_rates(capsys: Capture, monkeypatch: Any) -> None:
    only(monkeypatch)
    monkeypatch.setattr(doctor, "gpu_properties", lambda: (SimpleNamespace(name="NVIDIA H200"),))
    state, told = findings(capsys)["GPU"]
    assert state == "ok"
    assert "rates known of this device; einops-fast device --measure measures them" in told
