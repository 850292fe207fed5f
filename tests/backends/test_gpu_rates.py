"""What a GPU reaches is measured where that is asked for, and kept; until then the table counts."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from einops_fast import autotune, cli
from einops_fast.backends import gpu_rates, gpus
from einops_fast.backends.gpu_driver import GpuProperties
from einops_fast.backends.gpu_rates import Rates, keep_rates, recall_rates
from einops_fast.backends.gpus import gpu_ceilings, told_rates

LAPTOP = GpuProperties("GPU of a laptop", (8, 9), 20, 1.2e9, 3e9, 128, 24 << 20)
FAST = GpuProperties("GPU to come", (11, 0), 160, 2.0e9, 4e9, 8192, 128 << 20)
RATES = Rates(3e12, {"bfloat16": 7e14, "float32": 7e13, "float64": 5e13}, 2e-6, 2e-5, 100, "2026-11-28")


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    gpus._ceilings_of.cache_clear()
    yield
    gpus._ceilings_of.cache_clear()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver says."""
    monkeypatch.setattr(gpus, "gpu_properties", lambda: (LAPTOP, FAST))
    monkeypatch.setattr("einops_fast.commands.show.gpu_properties", lambda: (LAPTOP, FAST))


class TimedMemory:
    """A device that takes a millisecond for any run; ``other`` work makes each further time longer."""

    def __init__(self, other: float = 0.0) -> None:
        self.other = other

    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        return [1e-3 * (1 + self.other * (1 + at)) for at in range(repeat)]

    def synchronize(self, device: int) -> None:
        pass


def test_rates_follow_from_the_times_of_copies_and_products(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    from einops_fast.backends.torch.rates import Disturbed, measured_rates

    properties = SimpleNamespace(multi_processor_count=100, L2_cache_size=1 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    cpu, as_set, drawn = torch.device("cpu"), torch.backends.cuda.matmul.allow_tf32, torch.get_rng_state()
    try:
        rates = measured_rates(cpu, 0, TimedMemory())
        with pytest.raises(Disturbed):
            measured_rates(cpu, 0, TimedMemory(other=0.2))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = as_set
    assert torch.equal(torch.get_rng_state(), drawn)
    assert rates.bandwidth == pytest.approx(2 * (64 << 20) / 1e-3)
    assert rates.flops == pytest.approx(dict.fromkeys(gpu_rates.MEASURED_DTYPES, 2 * 512**3 / 1e-3))
    assert (rates.call, rates.units) == pytest.approx((1e-3 / 4, 100))
    assert rates.again > 0


def test_rates_are_kept_for_the_next_process() -> None:
    known = gpu_ceilings("NVIDIA H200")
    keep_rates("NVIDIA H200", RATES)
    assert recall_rates("NVIDIA H200") == RATES
    assert recall_rates("NVIDIA H100") is None
    assert gpu_ceilings("NVIDIA H200") is known  # choices of this process don't flip
    gpus._ceilings_of.cache_clear()  # as in another process
    with autotune("reproducible"):  # all processes have the table
        assert gpu_ceilings("NVIDIA H200") == known
    found = gpu_ceilings("NVIDIA H200")
    assert (found.bandwidth, found.units, found.call) == pytest.approx((3e12, 100, 2e-6))
    # It wasn't measured.
    assert found.flops["float16"] == known.flops["float16"]
    assert set(found.flops) == set(known.flops)


@pytest.mark.parametrize("wrong", [{}, {"bandwidth": "much"}, {"flops": None}, {"call": -1.0}, {"more": 1}])
def test_what_is_on_disk_may_be_anything(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"bandwidth": 1e12, "flops": {"float32": 1e13}, "call": 1e-6, "again": 1e-6, "units": 9, "date": ""}
    monkeypatch.setattr(gpu_rates.disk_cache, "read", lambda key: record)
    assert recall_rates("a GPU") is not None
    monkeypatch.setattr(gpu_rates.disk_cache, "read", lambda key: record | wrong if wrong else None)
    assert recall_rates("a GPU") is None


def test_a_device_that_is_not_known_counts_as_the_nearest(devices: None) -> None:
    slow, fast = told_rates(LAPTOP.name), told_rates(FAST.name)
    assert slow.assumed == "in proportion to the A100"
    assert slow.rates.bandwidth == pytest.approx(1.4e12 * 128 * 3e9 / (5120 * 1.215e9))
    assert fast.assumed == "in proportion to the H200"
    assert (slow.rates.units, fast.rates.units) == (20, 160)
    assert slow.rates.flops["bfloat16"] < told_rates("A100").rates.flops["bfloat16"]
    assert fast.rates.flops["bfloat16"] > told_rates("H200").rates.flops["bfloat16"]
    assert told_rates("of which the driver knows nothing").rates == told_rates("A100").rates


def test_the_command_says_what_is_measured_and_what_is_assumed(
    devices: None, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_rates(LAPTOP.name, RATES)
    assert cli.main(["device"]) == 0
    printed = capsys.readouterr().out
    assert "GPU of a laptop: compute capability 8.9, 20 multiprocessors" in printed
    assert f"measured on {RATES.date}" in printed
    assert "3000" in printed
    assert printed.count("in proportion to the A100") == 2  # float16 and tf32
    assert printed.count("in proportion to the H200") == 8
    assert cli.main(["device", "--json"]) == 0
    laptop, fast = json.loads(capsys.readouterr().out)
    assert (laptop["measured"], fast["measured"]) == (True, False)
    assert laptop["bandwidth"] == pytest.approx(3e12)


def test_the_command_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("einops_fast.commands.show.gpu_properties", lambda: ())
    assert cli.main(["device"]) == 2
    assert "no GPU" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_gpu_is_measured(torch: Any) -> None:
    from einops_fast.backends.torch.rates import measure_now

    torch.manual_seed(0)
    drawn = torch.rand(1, device="cuda")
    torch.manual_seed(0)
    assert measure_now(0)
    assert torch.equal(drawn, torch.rand(1, device="cuda"))
    rates = recall_rates(torch.cuda.get_device_name(0))
    assert rates is not None
    assert rates.bandwidth > 0
    assert min(rates.flops.values()) > 0
