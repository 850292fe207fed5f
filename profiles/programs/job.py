"""What a process is asked to measure, and what it has found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Found", "Job"]


@dataclass(frozen=True)
class Job:
    """What a process measures."""

    case: str
    what: str
    dtype: str
    device: str
    threads: int


@dataclass(frozen=True)
class Found:
    """What a process has found.

    Attributes:
        losses: of the first steps.
        first: seconds of the first step, with all that is compiled for it.
        passed: seconds of the first steps, each batch once at least.
        kernels: seconds until there are kernels of ours for all that these called.
        step: seconds of a step.
        spread: interquartile range of it.
        host: seconds until the host is through with a step.
        peak: bytes that a step holds at most, everything included; 0 on a CPU.
        fused: how many patterns were fused.
    """

    losses: list[float]
    first: float
    passed: float
    kernels: float
    step: float = 0.0
    spread: float = 0.0
    host: float = 0.0
    peak: int = 0
    fused: int = 0
