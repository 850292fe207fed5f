"""Compile and measure for the GPU of this machine what calls begin when they are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from einops_fast.backends.gpu_rates import recall_rates
from einops_fast.observing.calls import Called
from einops_fast.runtime import background
from einops_fast.runtime.tiers import settle_all
from einops_fast.runtime.tuning import autotune
from einops_fast.tune.recorded import in_words


def tune_here(calls: Sequence[Called], device: int, told: Callable[[str, int, int], None]) -> list[tuple[Called, str]]:
    """Make calls again, and choose for all that they begin; return those that failed, and why."""
    import torch

    from einops_fast.backends.torch.beginning import differentiate
    from einops_fast.backends.torch.rates import measure_now
    from einops_fast.tune.again import numbers_like, precision_of, run_of

    background.take_all_processors()
    if recall_rates(torch.cuda.get_device_name(device)) is None:
        # Plans are priced by these, and nothing else is to be measured beside what follows.
        measure_now(device)
    failed, runs = [], []
    with torch.cuda.device(device), autotune("auto"):
        for done, call in enumerate(calls, 1):
            try:
                arrays = [None if each is None else numbers_like(each, device) for each in call.arrays]
                with torch.set_grad_enabled(call.direction == "both"), precision_of(call):
                    run = run_of(call, arrays)
                    runs.append(run)  # which keeps what it has begun
                    results = run(*[each for each in arrays if each is not None] if call.kind == "einsum" else arrays)
                    # A contraction's gradients are calls of their own.
                    if call.kind != "einsum":
                        differentiate(results, arrays)
            except Exception as error:  # of a version that took other arguments, say, or for lack of memory
                failed.append((call, in_words(error)))
            told("called", done, len(calls))
        torch.cuda.synchronize()
        settle_all(told)
    return failed
