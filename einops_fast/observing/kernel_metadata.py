"""What is known of the kernel that runs a step: tiles, registers, spills, shared memory; and how it was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from einops_fast.runtime import disk_cache


def kernel_rows(run: Callable[..., Any], moved: int) -> Iterator[Mapping[str, Any]]:
    """Yield a row for what a step with a choice became, once it has run; nothing for other steps.

    Args:
        run: what a backend made of the step: a :class:`~einops_fast.backends.triton.contraction.choice.Choice`, or just
        calls.
        moved: bytes of operands and result.
    """
    chosen = getattr(run, "chosen", None)
    if chosen is None:
        return
    timed = _timed(run)
    # What runs on copied operands is a kernel in its turn.
    way = getattr(chosen, "_then", chosen)
    tiling = getattr(way, "tiling", None)
    compiled = _compiled(way)
    metadata = getattr(compiled, "metadata", None)
    yield {
        "way": chosen.name,
        "chosen_by": "measurement" if timed else "prediction",
        "predicted_seconds": chosen.seconds,
        "measured_seconds": timed.get(chosen.name),
        "candidates": "; ".join(
            f"{name}: {'failed' if seconds is None else f'{seconds * 1e6:.2f} µs'}" for name, seconds in timed.items()
        ),
        "grid": "×".join(map(str, tiling.grid)) if tiling is not None else None,
        "parts": getattr(tiling, "split", None),
        "warps": getattr(metadata, "num_warps", getattr(tiling, "warps", None)),
        "stages": getattr(metadata, "num_stages", getattr(tiling, "stages", None)),
        "registers": getattr(compiled, "n_regs", None),
        "spills": getattr(compiled, "n_spills", None),
        "shared_bytes": getattr(metadata, "shared", None),
        "moved_bytes": moved,
        # Sums of parts are made by a second kernel, in a fixed order.
        "atomics": 0 if tiling is not None else None,
    }


def _timed(run: Any) -> Mapping[str, float | None]:
    """Return the candidates that were measured, by name; ``None`` for those that failed."""
    for problem in run._problems.values():
        candidates = (disk_cache.read(problem.key()) or {}).get("candidates")
        if isinstance(candidates, dict):
            return candidates
    return {}


def _compiled(way: Any) -> Any:
    """Return the kernel that Triton made, if it was launched."""
    kernel: Any = vars(way).get("_kernel")
    launched = next(iter(kernel._launches), None) if kernel is not None else None
    return None if launched is None else kernel.compile_for(*launched[1])
