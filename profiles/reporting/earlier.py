"""Earlier runs: how many times as long everything takes now, and what needn't be measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from einops_fast.profiles.reporting.cells import milliseconds, ratio, table
from einops_fast.profiles.reporting.records import Machine, Options, Row, is_ours, phase
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.reporting.results import Result, read_result

__all__ = ["check_same_machine", "compared", "earlier_result", "finished"]

# What of an environment has to stay the same.
LASTING = ("CPU", "compute capability", "multiprocessors", "driver", "einops_fast commit")
NOISE = 0.05  # Ratios that are nearer to 1 than this say nothing, however steady the times

Pair = tuple[Row, Row]  # A row of this run, and the same of the earlier one

COLUMNS: dict[str, Callable[[Pair], str]] = {
    "framework": lambda pair: pair[0].framework,
    "dtype": lambda pair: pair[0].dtype,
    "case": lambda pair: pair[0].case,
    "what": lambda pair: pair[0].what,
    "direction": lambda pair: phase(pair[0].backward),
    "before ms": lambda pair: milliseconds(pair[1].seconds),
    "now ms": lambda pair: milliseconds(pair[0].seconds),
    "now/before": lambda pair: ratio(_ratio(pair)),
    "verdict": lambda pair: _verdict(pair) or "same",
}


def earlier_result(paths: Sequence[Path], study: str) -> Result | None:
    """Return the last of the files that is of this study."""
    found = [result for result in map(read_result, paths) if result.study == study]
    return found[-1] if found else None


def compared(now: Result, before: Result) -> Table:
    """Return a line for whatever both have measured, the worst first, and for what fails now and didn't before."""
    known = {row.key: row for row in before.measured}
    both = [(row, known[row.key]) for row in now.measured if row.key in known]
    both.sort(key=lambda pair: -(_ratio(pair) or float("inf")))
    ratios = [value for value in map(_ratio, both) if value is not None]
    regressions = sum("failed" in _verdict(pair) for pair in both)
    summary = [f"{regressions} of {len(both)} are regressions (marked)."]
    if ratios:
        summary.insert(0, f"Geometric mean of now/before: {geomean(ratios):.3f} ({len(ratios)} times).")
    if (now.device, now.threads) != (before.device, before.threads):
        summary.append(f"The earlier run was on another machine: {before.device}, CPU threads: {before.threads}.")
    return table(f"{now.study}: against the run of {before.date}", both, COLUMNS, *summary)


def _verdict(pair: Pair) -> str:
    """Return ``failed: regression`` where something got worse by more than the spread of both; ``faster``; nothing."""
    now, then = pair
    if now.failure:
        return "" if then.failure else f"failed: regression, {now.failure}"
    if now.seconds is None or not then.seconds:
        return ""
    # An interquartile range to either side.
    doubt = max(NOISE * then.seconds, (now.spread or 0.0) + (then.spread or 0.0))
    if now.seconds - then.seconds > doubt:
        return "failed: regression"
    return "faster" if then.seconds - now.seconds > doubt else ""


def _ratio(pair: Pair) -> float | None:
    now, then = pair
    return now.seconds / then.seconds if now.seconds is not None and then.seconds else None


# Going on from an unfinished run


def finished(before: Result, options: Options) -> tuple[str, ...]:
    """Return what an earlier run has measured to the end, as :func:`.records.task` names it.

    Memory is looked at last, or else phases: where those of ours are known, all is. What failed is tried again.
    """
    then, now = (
        f"{'quickly' if quick else 'thoroughly'} against {', '.join(sorted(peers)) or 'its own choice of peers'}"
        for quick, peers in ((before.quick, before.peers), (options.quick, options.peers))
    )
    if then != now:
        raise ValueError(f"the run of {before.date} was measured {then}, not {now}")
    ours = [row for row in before.measured if is_ours(row.what) and row.seconds is not None]
    return tuple(row.task for row in ours if row.peak_bytes is not None or row.phases)


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
