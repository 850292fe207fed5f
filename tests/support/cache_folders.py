"""An entry of the cache on disk, and processes that use the cache."""

import os
import subprocess
import sys
from pathlib import Path

from einops_fast.runtime import disk_cache

ROOT = Path(__file__).parents[2]
KEY = {
    "problem": "bind,bjnd->bnij",
    "dtype": "float16",
    "device": "NVIDIA H200",
    "shapes": [[64, 100, 8, 128], [64, 50, 8, 128]],
    "versions": {"torch": "2.13.0", "driver": None},
}
RECORD = {"choice": "split-k", "seconds": 1.2e-5, "candidates": {"split-k": 1.2e-5, "cublas": 2e-5, "broken": None}}


def path_of(key=KEY):
    """The file of a key that is written here."""
    disk_cache.write(key, RECORD)
    (path,) = (entry.path for entry in disk_cache.entries() if entry.key == key)
    return path


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def start(script, *arguments, **environment):
    """A process in which a warning of anything in the cache is an error."""
    script = f"import json, os, sys, time, warnings\nfrom einops_fast.runtime import disk_cache\n{script}"
    return subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    printed, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return printed.strip()
