"""Peers get the same operands, are compiled and wrapped outside the time, and fail without failing the run."""

import threading
import time
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from einops_fast.profiles import frameworks
from einops_fast.profiles.cases import Case
from einops_fast.profiles.contraction import peers
from einops_fast.profiles.reporting.records import ALL, Note
from einops_fast.profiles.timing import limits, measure
from einops_fast.profiles.ways import Way

SMALL = Case("small", "bik,bjk->bij", ((2, 3, 4), (2, 5, 4)))
THREE = Case("three", "bi,bij,bj->b", ((2, 3), (2, 3, 4), (2, 4)))


@pytest.fixture
def numpy():
    return frameworks.load("numpy", "cpu", 1)


@pytest.fixture
def torch():
    pytest.importorskip("torch")
    return frameworks.load("torch", "cpu", 1)


def names(found):
    return [peer.name for peer in found]


def reasons(framework, *asked):
    return [row.failure for row in peers.present(framework, asked)[1]]


def failures(ways, case=SMALL):
    return [timing.failure for timing in measure.compare(case, ways, "float32", effort=measure.QUICK)]


# Which peers there are


def test_native_and_opt_einsum_are_the_peers_on_a_cpu(numpy, torch):
    for framework in (numpy, torch):
        found, notes = peers.present(framework)
        assert names(found) == ["native", "opt_einsum"]
        assert not notes
        assert failures(peers.make_ways(found, SMALL, "float32")) == ["", ""]


def test_native_is_always_a_peer_and_the_first(numpy):
    assert names(peers.present(numpy, ("opt_einsum",))[0]) == ["native", "opt_einsum"]
    assert names(peers.present(numpy, ("native",))[0]) == ["native"]


def test_absent_peers_are_told(numpy, torch):
    found, absent = peers.present(numpy, tuple(peers.PEERS))
    assert names(found) == ["native", "opt_einsum"]
    assert [(row.framework, row.case, row.what) for row in absent] == [
        ("numpy", ALL, name) for name in ("compile", "cupy", "cutensor")
    ]
    assert reasons(torch, "cupy") == ["CuPy runs on a GPU only"]
    [row] = peers.present(torch, ("cupy",))[1]
    assert row.guest
    assert "Traceback" in row.details


def test_native_numpy_is_the_one_that_calls_blas(numpy, monkeypatch):
    given = []
    monkeypatch.setattr(numpy, "einsum", lambda equation, *operands, **options: given.append(options) or operands[0])
    [native] = peers.make_ways(peers.present(numpy, ("native",))[0], SMALL, "float32")
    native.call(1.0)
    assert given == [{"optimize": True}]


def test_ellipses_are_called_as_they_are_spelled(torch):
    case = Case("dots", "abid,abjd->abij", ((2, 3, 4, 5), (2, 3, 6, 5)), spelled="...id,...jd->...ij")
    assert failures(peers.make_ways(peers.present(torch)[0], case, "float32"), case) == ["", ""]


# CuPy and cuTENSOR, by stand-ins that compute with NumPy in the memory of torch


class FakeCuPy(SimpleNamespace):
    def __init__(self):
        super().__init__(__version__="14", ones=np.ones, empty=np.empty, from_dlpack=np.from_dlpack)
        self.seen = []

    def einsum(self, equation, *operands):
        self.seen.append(operands)
        return np.einsum(equation, *operands)


def contraction(alpha, left, left_mode, right, right_mode, beta, result, result_mode):
    assert beta == 0
    result[...] = alpha * np.einsum(f"{left_mode},{right_mode}->{result_mode}", left, right)
    return result


@pytest.fixture
def gpu(torch, monkeypatch):
    """Modules by name, for a torch that believes to be on a GPU while peers are looked for."""
    modules = {"cupy": FakeCuPy(), "cupyx.cutensor": SimpleNamespace(contraction=contraction)}

    def import_module(name):
        found = modules[name] if name in modules else __import__(name)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(peers, "import_module", import_module)
    monkeypatch.setattr(peers, "find_spec", modules.get)

    def present(*asked):
        monkeypatch.setattr(torch, "device", "gpu")
        try:
            return peers.present(torch, asked)
        finally:
            monkeypatch.setattr(torch, "device", "cpu")

    return SimpleNamespace(modules=modules, present=present)


def test_all_peers_are_measured_on_a_gpu(gpu):
    found, notes = gpu.present()
    assert names(found) == list(peers.PEERS)
    assert notes == [Note("torch is measured beside CuPy 14")]


def test_cupy_contracts_the_memory_of_torch(gpu, torch):
    found, _ = gpu.present("cupy", "cutensor")
    ways = peers.make_ways(found, SMALL, "float32")
    assert [way.name for way in ways] == ["native", "cupy", "cutensor"]
    assert failures(ways) == ["", "", ""]
    operands = [torch.array(np.ones(shape), "float32") for shape in SMALL.shapes]
    call = ways[1].prepare(ways[1].call, *operands)
    operands[0][0, 0, 0] = 5
    result = ways[1].finish(call())
    assert isinstance(result, torch.torch.Tensor)
    assert result[0, 0, 0] == 4 + 4
    assert gpu.modules["cupy"].seen[-1][0].ctypes.data == operands[0].data_ptr()


def test_a_wrong_guest_is_found_out(gpu):
    gpu.modules["cupy"].einsum = lambda equation, *operands: 1.01 * np.einsum(equation, *operands)
    found, _ = gpu.present("cupy")
    native, cupy = failures(peers.make_ways(found, SMALL, "float32"))
    assert not native
    assert cupy.startswith("wrong: error")


def test_peers_compute_what_they_are_made_for(gpu):
    found, _ = gpu.present("cupy", "cutensor")
    assert [way.name for way in peers.make_ways(found, THREE, "float32")] == ["native", "cupy"]
    assert [way.name for way in peers.make_ways(found, SMALL, "bfloat16")] == ["native"]


def test_a_library_that_is_missing_at_the_first_call_is_absent(gpu):
    def missing(*arguments):
        raise RuntimeError("libcutensor.so.2 not found\nsearched everywhere")

    gpu.modules["cupyx.cutensor"] = SimpleNamespace(contraction=missing)
    found, [absent] = gpu.present("cutensor")
    assert names(found) == ["native"]
    assert (absent.what, absent.failure) == ("cutensor", "cuTENSOR can't be used: libcutensor.so.2 not found")
    gpu.modules["cupy"] = ImportError("built for another CUDA")
    found, notes = gpu.present("cupy", "cutensor")
    assert names(found) == ["native"]
    assert len(notes) == 2
    gpu.modules.pop("cupy")
    [absent] = gpu.present("cupy")[1]
    assert absent.failure == "CuPy isn't installed"


# Compilation


class FakeTorch(SimpleNamespace):
    """Compiles by ``compiling``, and keeps a list of what it was asked for."""

    def __init__(self, torch, compiling):
        self.log = []
        self.einsum = torch.einsum
        self.compiler = SimpleNamespace(reset=lambda: self.log.append("reset"))
        self.compiling = compiling

    def compile(self, call, *, fullgraph, dynamic):
        assert (fullgraph, dynamic) == (True, False)
        self.log.append("compile")
        return self.compiling(call)


def compiled_way(torch, compiling, **limits):
    fake = FakeTorch(torch.torch, compiling)
    return peers.Compiler(fake, **limits).way(torch, SMALL), fake.log


def test_a_case_is_compiled_once_and_outside_the_time(torch):
    clocked = []

    class Clock(measure.HostClock):
        def sample(self, call, calls):
            clocked.append(list(log))
            return super().sample(call, calls)

    way, log = compiled_way(torch, lambda call: call)
    [timing] = measure.compare(SMALL, [way], "float32", effort=measure.QUICK, clock=Clock(lambda: None))
    assert not timing.failure
    assert log == ["reset", "compile"]
    assert clocked[0] == log


def test_what_does_not_compile_is_a_reason(torch):
    def broken(call):
        raise NotImplementedError("no such lowering\nat length")

    way, _ = compiled_way(torch, broken)
    assert failures([way]) == ["NotImplementedError: no such lowering"]


def test_compilation_has_a_limit(torch):
    way, _ = compiled_way(torch, lambda call: forever, seconds=0.05)
    assert failures([way])[0].startswith("TimeoutError: compiling small took over")


def test_all_compilations_have_a_limit_together(torch):
    fake = FakeTorch(torch.torch, lambda call: lambda *operands: time.sleep(0.02) or call(*operands))
    compiler = peers.Compiler(fake, altogether=0.01)
    first, second = (compiler.way(torch, SMALL) for _ in range(2))
    assert failures([first]) == [""]
    assert failures([second]) == ["TimeoutError: the time for compilations is used up"]
    assert fake.log == ["reset", "compile"]


def test_many_equations_compile(torch):
    # One function compiled for many equations is what Dynamo gives up on.
    def without_a_compiler(call, **options):
        return torch.torch.compile(call, backend="eager", **options)

    fake = SimpleNamespace(einsum=torch.torch.einsum, compiler=torch.torch.compiler, compile=without_a_compiler)
    compiler = peers.Compiler(fake)
    for left, right, result in product(("ab", "ba"), ("bc", "cb"), ("ac", "ca", "abc")):
        case = Case("", f"{left},{right}->{result}", ((3, 3), (3, 3)))
        [timing] = measure.check(case, [compiler.way(torch, case)], "float32")
        assert not timing.failure


# Limits


def test_limit_is_over_with_its_block():
    with limits.limited(0.02, "nothing"):
        pass
    time.sleep(0.05)


def forever(*operands):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def test_limit_passes_through_handlers():
    with pytest.raises(TimeoutError, match="stubborn took over"), limits.limited(0.02, "stubborn"):
        forever()


def test_off_the_main_thread_there_is_no_limit():
    done = []

    def work():
        with limits.limited(0.01, "work"), limits.interrupts():
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done


# Rounds


class ScriptedClock:
    """A call says how long it takes."""

    sample_seconds = 1.0
    most_calls = 1

    def sample(self, call, calls):
        return call()


def test_a_way_far_behind_stops_early():
    effort = measure.Effort(rounds=12, seconds=60.0, warm_up=0.0, lost=2.0)
    times = measure.time_calls([lambda: 1.0, lambda: 1.9, lambda: 2.1], ScriptedClock(), effort=effort)
    assert [len(rounds) for rounds in times] == [12, 12, 5]
    times = measure.time_calls([lambda: 1.0, lambda: 100.0], ScriptedClock(), effort=measure.FULL)
    assert [len(rounds) for rounds in times] == [21, 21]


def test_rounds_until_a_device_has_settled_do_not_count():
    begun = time.perf_counter()

    def slows_down() -> float:
        time.sleep(0.001)
        return 1.0 if time.perf_counter() - begun < 0.05 else 2.0

    effort = measure.Effort(rounds=4, seconds=60.0, warm_up=0.0, settling=0.1)
    assert measure.time_calls([slows_down, slows_down], ScriptedClock(), effort=effort) == [[2.0] * 4] * 2


def test_ratios_are_of_the_rounds_that_both_have():
    ours = measure.Timing("ours", rounds=(2.0, 4.0, 6.0, 100.0))
    peer = measure.Timing("peer", rounds=(1.0, 1.0, 2.0))
    assert measure.paired_ratio(ours, peer) == 3.0
    assert measure.paired_ratio(ours, measure.Timing("failed", failure="wrong")) is None


def test_a_way_that_fails_after_its_check_is_a_reason(numpy):
    bound = []

    def once(call, *operands):
        bound.append(True)
        if len(bound) > 1:
            raise MemoryError("no room for more")
        return lambda: call(*operands)

    def einsum(*operands):
        return np.einsum(SMALL.equation, *operands)

    ways = [Way("native", einsum, numpy), Way("greedy", einsum, numpy, prepare=once)]
    native, greedy = measure.compare(SMALL, ways, "float32", effort=measure.QUICK)
    assert native.seconds is not None
    assert greedy.failure == "MemoryError: no room for more"
    assert greedy.seconds is None


def test_memory_is_spoiled_before_a_result_is_checked(numpy, monkeypatch):
    log = []
    monkeypatch.setattr(numpy, "spoil", lambda shapes, dtype: log.append((list(shapes), dtype)))

    def einsum(*operands):
        log.append("call")
        return np.einsum(SMALL.equation, *operands)

    measure.check(SMALL, [Way(name, einsum, numpy) for name in ("native", "ours")], "float32")
    assert log == [([(2, 3, 5)], "float32"), "call"] * 2


def test_what_prepares_a_call_leaves_no_right_result_behind(numpy, monkeypatch):
    log = []
    monkeypatch.setattr(numpy, "spoil", lambda shapes, dtype: log.append("spoil"))

    def prepare(call, *operands):
        log.append("prepare")
        return lambda: log.append("call") or call(*operands)

    def einsum(*operands):
        return np.einsum(SMALL.equation, *operands)

    measure.check(SMALL, [Way("native", einsum, numpy, prepare=prepare)], "float32")
    assert log == ["prepare", "spoil", "call"]
