"""What a GPU reaches is measured once, in short slices while it is idle, and kept; until then the table counts."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from einops_fast import autotune, cli
from einops_fast.backends import gpu_rates, gpus
from einops_fast.backends.gpu_driver import GpuProperties
from einops_fast.backends.gpu_rates import AHEAD, MOST, Slice, keep_rates, measured_rates, recall_rates
from einops_fast.backends.gpus import gpu_ceilings, told_rates
from einops_fast.runtime import background

LAPTOP = GpuProperties("GPU of a laptop", (8, 9), 20, 1.2e9, 3e9, 128, 24 << 20)
FAST = GpuProperties("GPU to come", (11, 0), 160, 2.0e9, 4e9, 8192, 128 << 20)


class FakeBench:
    """A device that takes as long as its rates say; other work makes some slices longer."""

    def __init__(self, name: str = "a GPU", bandwidth: float = 3e12, half: float = 7e14, double: float = 5e13) -> None:
        self.name, self.units, self.dtypes = name, 100, ("bfloat16", "float32", "float64")
        self.copied = (128 if bandwidth < 1e12 else 512) << 20
        self.rates = {"bfloat16": half, "float32": half / 10, "float64": double}
        self.bandwidth, self.slices = bandwidth, list[Slice]()
        self.busy: Callable[[], float] = lambda: 1.0
        self.held_up: Callable[[], float] = lambda: 0.0
        self.alone: Callable[[], bool] = lambda: True
        self.is_idle = True

    def idle(self) -> bool:
        return self.is_idle

    def opened(self) -> Any:
        return nullcontext()

    def copy(self) -> float:
        return self.copied / self.bandwidth

    def product(self, dtype: str, extent: int) -> Callable[[], float] | None:
        return (lambda: 2 * extent**3 / self.rates[dtype]) if extent < 4096 or dtype != "float64" else None

    def short(self) -> float:
        return 2e-6

    def slice(self, run: Callable[[], Any], times: int) -> Slice:
        seconds = sum(run() for _ in range(times)) * self.busy()
        host = 2e-5 * times + self.held_up()
        # Where the queue runs dry, the device waits for the host.
        self.slices.append(Slice(AHEAD, max(seconds, host - AHEAD), host, host, self.alone()))
        return self.slices[-1]


def _spent(bench: FakeBench) -> list[float]:
    return [each.ahead + each.seconds for each in bench.slices]


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


def test_slices_beside_other_work_do_not_count() -> None:
    random = Random(0)
    bench = FakeBench()
    bench.busy = lambda: random.choice([1.0, 1.0, random.uniform(1.1, 3)])
    bench.alone = lambda: random.random() < 0.7
    bench.held_up = lambda: random.choice([0.0, 0.0, 5e-3])
    rates = measured_rates(bench)
    assert rates is not None
    assert rates.bandwidth == pytest.approx(bench.bandwidth)
    assert rates.flops["bfloat16"] == pytest.approx(7e14)


@pytest.mark.parametrize("disturbed", ["never alone", "never the same", "always held up"])
def test_nothing_is_told_of_a_busy_device(disturbed: str) -> None:
    bench = FakeBench()
    if disturbed == "never alone":
        bench.alone = lambda: False
    elif disturbed == "always held up":
        bench.held_up = lambda: 1e-3
    else:
        slower = iter(range(1, 1000))
        bench.busy = lambda: 1.05 ** next(slower)
    assert measured_rates(bench) is None
    assert sum(_spent(bench)) <= MOST


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


def test_a_thread_leaves_a_busy_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench()
    bench.is_idle = False
    _threads(monkeypatch, bench)
    assert not bench.slices
    gpu_rates._begun.clear()
    bench.is_idle, bench.alone = True, lambda: False
    with monkeypatch.context() as forked:
        forked.setattr(background, "_forked", True)
        _threads(forked, bench)
    assert not bench.slices
    _threads(monkeypatch, bench)
    assert sum(_spent(bench)) <= MOST
    assert recall_rates(bench.name) is None


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


def test_torch_s_device_is_left_alone_where_bits_count(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """Nor is it measured while it is busy or memory is short."""
    from einops_fast.backends.torch import rates

    default = SimpleNamespace(query=lambda: True)
    free = [80 << 30]
    stand_in = SimpleNamespace(
        get_device_properties=lambda number: SimpleNamespace(multi_processor_count=100, L2_cache_size=50 << 20),
        Stream=lambda number: None,
        default_stream=lambda number: default,
    )
    monkeypatch.setattr(rates, "_cuda", stand_in)
    monkeypatch.setattr(rates, "unbound_from_captures", nullcontext)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 80 << 30))
    bench = rates.TorchBench(0)
    assert (bench.units, bench.copied) == (100, 200 << 20)
    assert bench.dtypes == ("bfloat16", "float16", "float32", "float64")
    assert bench.idle()
    torch.use_deterministic_algorithms(True)
    try:
        assert not bench.idle()
    finally:
        torch.use_deterministic_algorithms(False)
    default.query = lambda: False
    assert not bench.idle()
    default.query = lambda: True
    free[0] = 1 << 30
    assert not bench.idle()


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
