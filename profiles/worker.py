"""A further process: ``python -m einops_fast.profiles.worker STUDY FRAMEWORK OPTIONS`` prints a record a line.

With ``ahead`` and jobs in place of the others, the process calls these once, for what compilers leave on disk; with
``job`` and one job, it prints what that has found, a line at a time, and goes on when it gets one.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from einops_fast.profiles import frameworks
from einops_fast.profiles.processes import Job
from einops_fast.profiles.reporting.records import Machine, Options, Record, encode, skipped
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.environment import environment, versions

__all__ = ["call_ahead"]


def measured(study: str, name: str, options: Options) -> Iterator[Record]:
    try:
        framework = frameworks.load(name, options.device or frameworks.default_device(name), options.threads or None)
    except frameworks.Unavailable as reason:
        yield skipped(name, "everything", str(reason), details=traceback.format_exc())
        return
    where, gpu = framework.device_name(), framework.device == "gpu"
    yield Machine(where, framework.threads, versions(framework), gpu, name, environment(framework))
    yield from STUDIES[study].measure(framework, options)


def call_ahead(study: str, jobs: Sequence[Sequence[Any]]) -> None:
    """Call each of these jobs once, in this process; what fails will fail again where it's told."""
    framework = frameworks.load(jobs[0][0], "gpu", 1)
    for job in jobs:
        with suppress(Exception):
            STUDIES[study].ahead(framework, job)
        framework.forget()


def main(study: str, what: str, given: str) -> None:
    """Do what the parent asks for, and print records."""
    # Frameworks print what they like to standard output: records take it for themselves.
    with os.fdopen(os.dup(1), "w", buffering=1) as records:
        os.dup2(2, 1)
        if what == "ahead":
            call_ahead(study, json.loads(given))
        elif what == "job":
            for found in STUDIES[study].do(Job(**json.loads(given))):
                print(json.dumps(asdict(found)), file=records)
                sys.stdin.readline()
        else:
            for record in measured(study, what, Options(**json.loads(given))):
                print(encode(record), file=records)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
