"""How a way to run a step is chosen: by prediction, by measurement, from disk; what loops and copies cost."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_memory import FakeMemory

from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction import candidates as module
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.choice import Choice, chosen_run
from einops_fast.backends.triton.contraction.library import Candidate
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.loops.tilings import tilings
from einops_fast.backends.triton.contraction.problems import Reduction
from einops_fast.backends.triton.device.tiling import Axis
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.steps import Fused, Loop
from einops_fast.runtime import disk_cache, tiers
from einops_fast.runtime import measuring as clocks
from einops_fast.runtime.plan_cache import clear_plans


class TimedMemory(FakeMemory):
    """Arrays that are their own result; a run takes as long as what it returns says."""

    def seconds(self, run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        name, seconds = run()
        self.measured.append(name)
        return [seconds] * repeat


class Way(Candidate):
    """A way that is predicted to take one time and takes another."""

    def __init__(
        self, name: str, predicted: float, real: float, *, broken: bool = False, in_order: bool = True
    ) -> None:
        self.name, self.seconds, self.in_order = name, predicted, in_order
        self.real, self.broken = real, broken

    def compile(self, aligned: bool = True) -> None:
        if self.broken:
            raise RuntimeError("no such tile")

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        return lambda *operands: (self.name, self.real)


class OtherWay(Way):
    """The same of another kernel."""

    kind = "other"


LARGE = 4096
STEP = Fused((0,), "a", (LARGE,), (Loop("a", LARGE, (1,), True), Loop("b", LARGE, (LARGE,), False)), True, ())
"""A step too large to be left to the library unseen."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TimedMemory:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "interpreted", lambda: False)
    monkeypatch.setattr(choice_module, "interpreted", lambda: False)
    return TimedMemory()


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, memory: TimedMemory) -> Callable[..., Choice]:
    def make(*kernels: Way, library: Way, mode: str = "wait", step: Fused = STEP) -> Choice:
        clear_plans()  # each choice as in a process of its own
        monkeypatch.setattr(module, "kernel_candidates", lambda *_: sorted(kernels, key=lambda way: way.seconds))
        monkeypatch.setattr(module, "kernel_candidate", lambda name, *_: {way.name: way for way in kernels}.get(name))
        monkeypatch.setattr(choice_module, "LibraryCandidate", lambda *_: library)
        return Choice(step, library.run(memory, 0), memory, "ieee", mode)

    return make


def library(predicted: float, real: float) -> Way:
    return Way("library", predicted, real)


def test_the_fastest_is_chosen_by_measurement_and_kept_on_disk(offer: Any, memory: TimedMemory) -> None:
    """What doesn't compile is left out."""
    ways = Way("broken", 10, 1, broken=True), Way("one", 10, 9), Way("two", 11, 5)
    choose = offer(*ways, library=library(10, 7))
    assert choose("array") == ("two", 5)
    assert set(memory.measured) == {"one", "two", "library"}
    memory.measured.clear()
    assert choose("array") == ("two", 5)
    assert offer(*ways, library=library(10, 7))("array")[0] == "two"
    assert not memory.measured
    (entry,) = disk_cache.entries()
    assert entry.record["choice"] == "two"
    assert entry.record["candidates"] == {"broken": None, "one": 9, "two": 5, "library": 7}


def test_a_device_that_slows_down_is_no_disadvantage(
    offer: Any, memory: TimedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(run: Callable[[], Any], device: int, repeat: int) -> list[float]:
        name, seconds = run()
        memory.measured += [name] * repeat
        return [seconds * (1.0 if len(memory.measured) < 12 else 1.2)] * repeat

    monkeypatch.setattr(memory, "seconds", seconds)
    choose = offer(Way("two", 11, 0.0009), library=library(10, 0.001))
    assert choose("array")[0] == "two"
    # The library's turns first, some of these while the device is fast still; then one and the other.
    assert memory.measured[8:] == ["library", "two"] * ((len(memory.measured) - 8) // 2)


def test_what_takes_long_is_timed_once_and_not_all_of_it(
    offer: Any, memory: TimedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100))
    # Every look at the clock is a second later.
    monkeypatch.setattr(clocks, "perf_counter", lambda: float(next(now)))
    choose = offer(*(Way(f"way {at}", 10 + at / 10, 9 - at) for at in range(6)), library=library(10, 7))
    assert choose("array")[0] in ("library", "way 0", "way 1")
    assert memory.measured[0] == "library"
    assert 2 <= len(memory.measured) <= 4


@pytest.mark.parametrize(
    ("ways", "by_library", "mode", "chosen"),
    [
        ([Way("one", 10, 9), Way("slow", 90, 1)], 81, "wait", "one"),
        ([Way("one", 51, 1)], 10, "wait", "library"),
        ([Way("broken", 1, 1, broken=True), Way("one", 10, 9), Way("two", 11, 5)], 12, "never", "one"),
    ],
)
def test_clear_predictions_are_not_measured(
    offer: Any, memory: TimedMemory, ways: Sequence[Way], by_library: float, mode: str, chosen: str
) -> None:
    """Nor is anything where that is to be never done: then it's the best prediction that compiles."""
    assert offer(*ways, library=library(by_library, 1), mode=mode)("array")[0] == chosen
    assert not memory.measured


def test_the_choice_for_another_epilogue_is_another_one(offer: Any, memory: TimedMemory) -> None:
    epilogues = [None, Epilogue("gelu"), Epilogue("relu"), Epilogue("relu", (1,)), Epilogue("relu", (1,), True)]
    for at, epilogue in enumerate(epilogues):
        step = STEP.replace(epilogue=epilogue)
        real = 5 + at % 2 * 10
        ways = Way("one", 10, 9), Way("two", 11, real)
        assert offer(*ways, library=library(10, 20), step=step)("array")[0] == ("one" if at % 2 else "two")
    assert len(list(disk_cache.entries())) == len(epilogues)


@pytest.mark.parametrize(
    ("setting", "dtype"),
    [
        ("allow_fp16_reduced_precision_reduction", "float16"),
        ("allow_fp16_accumulation", "float16"),
        ("allow_bf16_reduced_precision_reduction", "bfloat16"),
    ],
)
def test_settings_of_the_library(setting: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from einops_fast.backends.torch.memory import TorchMemory

    others = [each for each in ("float16", "bfloat16", "float32") if each != dtype]
    before = {each: TorchMemory().library_settings(each) for each in (dtype, *others)}
    matmul = torch.backends.cuda.matmul
    was = getattr(matmul, setting)
    try:
        setattr(matmul, setting, not was)
        assert TorchMemory().library_settings(dtype) == {**before[dtype], setting: str(not was)}
        assert all(TorchMemory().library_settings(each) == before[each] for each in others)
    finally:
        setattr(matmul, setting, was)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda: "another")
    assert all(TorchMemory().library_settings(each) != settings for each, settings in before.items())


def test_another_order_has_to_be_clearly_faster(offer: Any, memory: TimedMemory) -> None:
    assert offer(Way("c", 10, 1.0), Way("other", 10, 0.98, in_order=False), library=library(10, 7))("array")[0] == "c"
    step = Fused((0,), "a", (LARGE,), (*STEP.loops[:1], Loop("b", LARGE, (2 * LARGE,), False)), True, ())
    choose = offer(Way("c", 10, 1.0), Way("other", 10, 0.9, in_order=False), library=library(10, 7), step=step)
    assert choose("array")[0] == "other"


def test_waiting_chooses_where_nothing_can_be_compiled_elsewhere(
    offer: Any, memory: TimedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers.background, "available", lambda: False)
    choose = offer(Way("one", 10, 5), library=library(10, 7), mode="auto")
    assert choose("array") == ("library", 7)
    tiers.settle_all()
    assert choose("array") == ("one", 5)


def test_where_no_room_is_left_for_the_library_s_intermediate_a_kernel_runs(offer: Any, memory: TimedMemory) -> None:
    """The call waits for it then, in any mode."""

    class Large(Way):
        def run(self, memory: Memory, device: int) -> Callable[..., Any]:
            def run(*operands: Any) -> Any:
                raise MemoryError

            return run

    choose = offer(Way("one", 10, 9), library=Large("library", 10, 7), mode="auto")
    assert choose("array") == ("one", 9)
    assert choose("array") == ("one", 9)
    hopeless = offer(Large("one", 10, 9), library=Large("library", 10, 7), mode="auto")
    with pytest.raises(MemoryError):
        hopeless("array")


def test_small_problems_are_the_library_s(memory: TimedMemory) -> None:
    small = Fused((0,), "a", (4,), (Loop("a", 4, (1,), True), Loop("b", 4, (4,), False)), True, ())
    calls = library(10, 7).run(memory, 0)
    assert chosen_run(Choice(small, calls, memory, "ieee", "auto")) is calls
    assert isinstance(chosen_run(Choice(small, calls, memory, "ieee", "always")), Choice)
    assert isinstance(chosen_run(Choice(STEP, calls, memory, "ieee", "auto")), Choice)


SMALL_CHAIN = Fused(
    (0, 1, 2),
    "ad",
    (4, 4),
    (
        Loop("a", 4, (4, 0, 0), True),
        Loop("b", 4, (1, 4, 0), False),
        Loop("c", 4, (0, 1, 4), False),
        Loop("d", 4, (0, 0, 1), True),
    ),
    False,
    (),
)


def test_a_small_step_of_several_calls_may_be_one_kernel(offer: Any, memory: TimedMemory) -> None:
    """Few kernels are compiled for it."""
    ways = [Way(f"kernel {at}", 10 + at / 10, 5.0) for at in range(5)]
    choose = offer(*ways, library=library(10, 7), step=SMALL_CHAIN)
    assert chosen_run(choose) is choose
    assert choose("a", "b", "c")[0] == "kernel 0"
    assert set(memory.measured) == {"kernel 0", "kernel 1", "library"}


def test_calls_at_odd_addresses_choose_for_themselves(
    offer: Any, memory: TimedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "pointer", lambda array: 4 if array == "odd" else 64)
    one, two = Way("one", 10, 9), Way("two", 11, 5)
    choose = offer(one, two, library=library(10, 7))
    assert choose("odd")[0] == "two"
    one.real = 1
    measured = len(memory.measured)
    assert choose("odd")[0] == "two"
    assert len(memory.measured) == measured
    assert choose("array")[0] == "one"
    assert len(memory.measured) > measured
    assert len(list(disk_cache.entries())) == 2


def test_the_best_of_each_kernel_are_measured(offer: Callable[..., Choice], memory: TimedMemory) -> None:
    ways = [Way(f"kernel {at}", 1.0, 5.0) for at in range(9)]
    others = [OtherWay(f"other {at}", 1.1 + at / 100, 2.0) for at in range(9)]
    choice = offer(*ways, *others, library=Way("library", 1.2, 9.0))
    choice(0)
    assert choice.chosen is others[0]
    assert {"kernel 0", "kernel 5", "other 0", "other 5", "library"} <= set(memory.measured)
    assert not {"kernel 6", "other 6"} & set(memory.measured)


def test_calls_pass_by_while_there_is_nothing_to_try_with_them(
    offer: Any, memory: TimedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers.background, "available", lambda: False)
    choose = offer(Way("one", 10, 9), library=library(10, 7), mode="auto")
    assert not choose.passes()  # the first call says what there is to choose of
    choose("array")
    passed = [choose.passes() or choose("array")[0] for _ in range(8)]
    assert passed == [True, True, "library", True, True, True, "library", True]
    assert choose.each_in() == 4
    (problem,) = choose._problems.values()
    assert problem.tiers.calls == 9
    problem.tiers.decide(problem.library)
    assert not choose.passes()
    assert choose.each_in() == 1
    assert not offer(Way("one", 10, 9), library=library(10, 7), mode="wait").passes()


ON = gpu_ceilings("H200")
ROWS = 264066


def fastest(free: Axis, summed: Axis, operands: int) -> tuple[float, ReductionTiling]:
    return tilings(Reduction(operands, (free,), (summed,)), "float16", ON)[0]


def test_lanes_without_an_element_take_as_long_as_others() -> None:
    """Of rows of 33 elements, a tile of 64 leaves half of each warp idle."""
    _, odd = fastest(Axis(ROWS, (33, 33, 1)), Axis(33, (1, 1, 0)), 2)
    assert odd.summed.block < 33


def test_odd_rows_take_longer_than_others_of_as_many_bytes() -> None:
    """Elements are loaded one by one."""
    odd, _ = fastest(Axis(ROWS, (65, 65, 1)), Axis(65, (1, 1, 0)), 2)
    even, _ = fastest(Axis(ROWS, (64, 64, 1)), Axis(64, (1, 1, 0)), 2)
    assert odd > 1.1 * even


def test_elements_of_one_sector_are_read_once() -> None:
    """A diagonal of blocks of 4 by 4 takes no more sectors than one row of each."""
    diagonal, _ = fastest(Axis(1200000, (16, 1)), Axis(4, (5, 0)), 1)
    row, _ = fastest(Axis(1200000, (16, 1)), Axis(4, (1, 0)), 1)
    apart, _ = fastest(Axis(1200000, (256, 1)), Axis(4, (64, 0)), 1)
    assert diagonal < 1.5 * row
    assert diagonal < apart / 1.5
