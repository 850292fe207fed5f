"""One process per framework, so that imports and thread settings don't disturb each other.

The parent starts ``python -m einops_fast.profiles.worker STUDY FRAMEWORK OPTIONS`` and reads a record a line; with
``ahead`` and jobs in place of the others, the process calls these once, for what compilers leave on disk.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from einops_fast.profiles import frameworks
from einops_fast.profiles.processes import WORKER, surroundings
from einops_fast.profiles.reporting.records import Machine, Options, Record, decode, encode, skipped
from einops_fast.profiles.studies import STUDIES
from einops_fast.profiles.timing.environment import environment, versions
from einops_fast.profiles.timing.processors import available_threads, thread_environment

__all__ = ["call_ahead", "run_worker"]

# Statuses of a process that was asked to end; the last is its own after Ctrl-C.
STOPPED = (-signal.SIGTERM, -signal.SIGINT, 130)


def run_worker(study: str, framework: str, options: Options) -> Iterator[Record]:
    """Measure in a process of its own; records come as they are made.

    Raises:
        KeyboardInterrupt: someone has stopped the process.
    """
    threads = options.threads or available_threads()
    command = [sys.executable, "-m", WORKER, study, framework, json.dumps(asdict(options))]
    settings = surroundings(thread_environment(threads))
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=settings) as process,
    ):
        assert process.stdout is not None
        try:
            yield from map(decode, process.stdout)
        except BaseException:
            # Whoever reads has stopped, by Ctrl-C or otherwise: so does the work.
            process.terminate()
            raise
        if process.wait() in STOPPED:
            raise KeyboardInterrupt
        if process.returncode != 0:
            complaints.seek(0)
            why = f"the process ended with status {process.returncode}"
            yield skipped(framework, "everything after", why, details=complaints.read()[-4000:].strip(), guest=False)


def measured(study: str, name: str, options: Options) -> Iterator[Record]:
    """Measure in this process."""
    try:
        framework = frameworks.load(name, options.device or frameworks.default_device(name), options.threads or None)
    except frameworks.Unavailable as reason:
        yield skipped(name, "everything", str(reason), details=traceback.format_exc())
        return
    where, gpu = framework.device_name(), framework.device == "gpu"
    yield Machine(where, framework.threads, versions(framework), gpu, name, environment(framework))
    yield from STUDIES[study].measure(framework, options)


def call_ahead(study: str, jobs: Sequence[Sequence[Any]]) -> None:
    """Call each of these jobs once; what fails will fail again where it's told."""
    framework = frameworks.load(jobs[0][0], "gpu", 1)
    for job in jobs:
        with suppress(Exception):
            STUDIES[study].ahead(framework, job)
        framework.forget()


def main(study: str, what: str, given: str) -> None:
    """Do what the parent asks for, and print records."""
    if what == "ahead":
        call_ahead(study, json.loads(given))
        return
    # Frameworks print what they like to standard output: records take it for themselves.
    with os.fdopen(os.dup(1), "w", buffering=1) as records:
        os.dup2(2, 1)
        for record in measured(study, what, Options(**json.loads(given))):
            print(encode(record), file=records)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
