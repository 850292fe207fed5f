"""Earlier runs: how many times as long everything takes now, and what needn't be measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from einops_fast.profiles.reporting.cells import milliseconds, ratio, table
from einops_fast.profiles.reporting.records import Machine, Options, Row, is_ours, phase
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.reporting.results import Result, read_result

__all__ = ["check_same_machine", "compared", "earlier_result", "finished", "verdict"]

# What of an environment has to stay the same.
LASTING = ("CPU", "compute capability", "multiprocessors", "driver", "einops_fast commit")
NOISE = 0.05  # Ratios that are nearer to 1 than this say nothing, however steady the times


def earlier_result(paths: Sequence[Path], study: str) -> Result | None:
    """The last of the files that is of this study."""
    found = [result for result in map(read_result, paths) if result.study == study]
    return found[-1] if found else None


def compared(now: Result, before: Result) -> Table:
    """A line for whatever both have measured, the worst first, and for what fails now and didn't before."""
    known = {row.key: row for row in before.measured}
    both = [(row, known[row.key]) for row in now.measured if row.key in known]
    both.sort(key=lambda pair: -(_ratio(*pair) or float("inf")))
    columns: dict[str, Callable[[tuple[Row, Row]], str]] = {
        "framework": lambda pair: pair[0].framework,
        "dtype": lambda pair: pair[0].dtype,
        "case": lambda pair: pair[0].case,
        "what": lambda pair: pair[0].what,
        "direction": lambda pair: phase(pair[0].backward),
        "before ms": lambda pair: milliseconds(pair[1].seconds),
        "now ms": lambda pair: milliseconds(pair[0].seconds),
        "now/before": lambda pair: ratio(_ratio(*pair)),
        "verdict": lambda pair: verdict(*pair) or "same",
    }
    ratios = [value for pair in both if (value := _ratio(*pair)) is not None]
    regressions = sum("failed" in verdict(*pair) for pair in both)
    summary = [f"{regressions} of {len(both)} are regressions (marked)."]
    if ratios:
        summary.insert(0, f"Geometric mean of now/before: {geomean(ratios):.3f} ({len(ratios)} times).")
    if (now.device, now.threads) != (before.device, before.threads):
        summary.append(f"The earlier run was on another machine: {before.device}, CPU threads: {before.threads}.")
    made = table(f"{now.study}: against the run of {before.date}", both, columns, *summary)
    return replace(made, figures={"geomean": geomean(ratios) if ratios else None, "regressions": regressions})


def verdict(now: Row, then: Row) -> str:
    """``failed: regression`` where something got worse by more than the spread of both runs; ``faster``; or nothing."""
    if now.failure:
        return "" if then.failure else f"failed: regression, {now.failure}"
    value = _ratio(now, then)
    if value is None or now.seconds is None or then.seconds is None:
        return ""
    # An interquartile range to either side.
    doubt = max(NOISE * then.seconds, (now.spread or 0.0) + (then.spread or 0.0))
    if now.seconds - then.seconds > doubt:
        return "failed: regression"
    return "faster" if then.seconds - now.seconds > doubt else ""


def _ratio(now: Row, then: Row) -> float | None:
    return now.seconds / then.seconds if now.seconds is not None and then.seconds else None


# Going on from an unfinished run


def finished(before: Result, options: Options) -> tuple[str, ...]:
    """What an earlier run has measured to the end, as :func:`~einops_fast.profiles.reporting.records.task` names it.

    Memory is looked at last: where that of ours is known, all is. What failed is tried again.
    """
    if (before.quick, set(before.peers)) != (options.quick, set(options.peers)):
        raise ValueError(
            f"the run of {before.date} was measured {_way(before.quick, before.peers)}, "
            f"not {_way(options.quick, options.peers)}"
        )
    ours = [row for row in before.measured if is_ours(row.what) and row.seconds is not None]
    return tuple(row.task for row in ours if row.peak_bytes is not None)


def _way(quick: bool, peers: tuple[str, ...]) -> str:
    return f"{'quickly' if quick else 'thoroughly'} against {', '.join(sorted(peers)) or 'its own choice of peers'}"


def check_same_machine(before: Result, machine: Machine) -> None:
    """Raise ValueError unless times of an earlier run can stand beside those of this machine."""
    then_was = before.environment.get(machine.framework, {})
    pairs = {
        "device": (before.device if machine.gpu else machine.device, machine.device),
        "CPU threads": (before.threads, machine.threads),
        **{name: (before.versions.get(name, version), version) for name, version in machine.versions.items()},
        **{name: (then_was.get(name), machine.environment.get(name)) for name in LASTING if then_was},
    }
    for what, (then, now) in pairs.items():
        if then != now:
            raise ValueError(f"the run of {before.date} can't be gone on with: {what} was {then} and is {now}")
