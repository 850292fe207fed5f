"""Going on from an unfinished run: which of its cases needn't be measured again, and whether it was of this kind."""

from __future__ import annotations

from einops_fast.profiles.reporting.records import Machine, Options, is_ours
from einops_fast.profiles.reporting.results import Result

__all__ = ["check_same_machine", "finished"]

LASTING = ("CPU", "compute capability", "multiprocessors", "driver", "einops_fast commit")
"""What of an environment has to stay the same."""


def finished(before: Result, options: Options) -> tuple[str, ...]:
    """What an earlier run has measured to the end, as :func:`~einops_fast.profiles.reporting.records.task` names it.

    Memory is looked at last: where that of ours is known, all is. What failed is tried again.

    Raises:
        ValueError: it was measured in another way than ``options`` say.
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
    """Whether times of an earlier run can stand beside those of this machine.

    Raises:
        ValueError: device, processor, threads or versions differ.
    """
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
