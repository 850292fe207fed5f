"""What a GPU reaches is measured once, in short slices while it is idle, and kept; until then the table counts."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from einops_fast import autotune, cli
from einops_fast.backends import gpu_rates, gpus
from einops_fast.backends.gpu_driver import GpuProperties
from einops_fast.backends.gpu_rates import AHEAD, Slice, keep_rates, measured_rates, recall_rates
from einops_fast.backends.gpus import gpu_ceilings, told_rates

LAPTOP = GpuProperties("GPU of a laptop", (8, 9), 20, 1.2e9, 3e9, 128, 24 << 20)
FAST = GpuProperties("GPU to come", (11, 0), 160, 2.0e9, 4e9, 8192, 128 << 20)


class FakeBench:
    """A device that takes as long as its rates say."""

    name, units, dtypes = "a GPU", 100, ("bfloat16", "float32", "float64")
    copied, bandwidth = 512 << 20, 3e12

    def __init__(self) -> None:
        self.rates = {"bfloat16": 7e14, "float32": 7e13, "float64": 5e13}
        self.slices: list[Slice] = []

    def idle(self) -> bool:
        return True

    def opened(self) -> Any:
        return nullcontext()

    def copy(self) -> float:
        return self.copied / self.bandwidth

    def product(self, dtype: str, extent: int) -> Callable[[], float] | None:
        return (lambda: 2 * extent**3 / self.rates[dtype]) if extent < 4096 or dtype != "float64" else None

    def short(self) -> float:
        return 2e-6

    def slice(self, run: Callable[[], Any], times: int) -> Slice:
        seconds = sum(run() for _ in range(times))
        host = 2e-5 * times
        # Where the queue runs dry, the device waits for the host.
        self.slices.append(Slice(AHEAD, max(seconds, host - AHEAD), host, host, True))
        return self.slices[-1]


@pytest.fixture(autouse=True)
def a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpu_rates, "_begun", set())
    gpus._ceilings_of.cache_clear()
    yield
    gpus._ceilings_of.cache_clear()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver says."""
    monkeypatch.setattr(gpus, "gpu_properties", lambda: (LAPTOP, FAST))
    monkeypatch.setattr("einops_fast.commands.show.gpu_properties", lambda: (LAPTOP, FAST))


def test_rates_are_kept_for_the_next_process() -> None:
    known = gpu_ceilings("NVIDIA H200")
    rates = measured_rates(FakeBench())
    assert rates is not None
    keep_rates("NVIDIA H200", rates)
    assert recall_rates("NVIDIA H200") == rates
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


def test_a_device_that_is_not_known_counts_as_the_nearest(devices: None) -> None:
    slow, fast = told_rates(LAPTOP.name), told_rates(FAST.name)
    assert slow.assumed == "in proportion to the A100"
    assert slow.rates.bandwidth == pytest.approx(1.4e12 * 128 * 3e9 / (5120 * 1.215e9))
    assert fast.assumed == "in proportion to the H200"
    assert (slow.rates.units, fast.rates.units) == (20, 160)
    assert slow.rates.flops["bfloat16"] < told_rates("A100").rates.flops["bfloat16"]
    assert fast.rates.flops["bfloat16"] > told_rates("H200").rates.flops["bfloat16"]
    assert told_rates("of which the driver knows nothing").rates == told_rates("A100").rates


def _threads(monkeypatch: pytest.MonkeyPatch, bench: Any) -> None:
    monkeypatch.setattr(gpu_rates, "_START", 0.0)
    monkeypatch.setattr(gpu_rates, "_PAUSE", 0.0)
    monkeypatch.setattr(gpu_rates, "_PATIENCE", 0.0)
    monkeypatch.setattr(gpu_rates, "_WAITS", (0.0, 1.0, 0.0))
    monkeypatch.setattr(gpu_rates.atexit, "register", lambda end, thread: thread.join())
    gpu_rates.measure_behind(bench.name, lambda: bench)


def test_a_thread_measures_once_when_the_device_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench()
    looks = iter(range(10**6))
    monkeypatch.setattr(bench, "idle", lambda: next(looks) > 5)
    _threads(monkeypatch, bench)
    assert recall_rates(bench.name) is not None
    bench.slices.clear()
    _threads(monkeypatch, bench)
    gpu_rates._begun.clear()  # another process finds it on disk
    _threads(monkeypatch, bench)
    assert not bench.slices


def test_the_command_says_what_is_measured_and_what_is_assumed(
    devices: None, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = measured_rates(FakeBench())
    assert rates is not None
    keep_rates(LAPTOP.name, rates)
    assert cli.main(["device"]) == 0
    printed = capsys.readouterr().out
    assert "GPU of a laptop: compute capability 8.9, 20 multiprocessors" in printed
    assert f"measured on {rates.date}" in printed
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
    from einops_fast.backends.torch.rates import TorchBench

    torch.manual_seed(0)
    drawn = torch.rand(1, device="cuda")
    torch.manual_seed(0)
    rates = measured_rates(TorchBench(0, sets_precision=True))
    assert rates is not None
    assert torch.equal(drawn, torch.rand(1, device="cuda"))
    assert rates.bandwidth > 0
    assert min(rates.flops.values()) > 0


@pytest.mark.gpu
def test_a_thread_measures_beside_captured_graphs(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    from einops_fast.backends.torch.rates import measure_when_idle

    monkeypatch.setattr(gpu_rates, "_START", 0.0)
    x = torch.randn(256, 256, device="cuda")
    torch.mm(x, x)
    torch.cuda.synchronize()
    measure_when_idle(0)
    for _ in range(200):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                found = torch.mm(x, x)
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(found, torch.mm(x, x))
