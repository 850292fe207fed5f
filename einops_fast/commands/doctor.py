"""The command ``einops-fast doctor``: what is installed and what is missing, and a check of each backend."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from einops_fast._version import __version__
from einops_fast.attention.attend import attention
from einops_fast.backends import get_backend
from einops_fast.backends.gpu_driver import driver_version, gpu_properties
from einops_fast.backends.gpus import told_rates
from einops_fast.backends.triton_support import OLDEST, installed_version
from einops_fast.commands.output import EXTRAS, print_json
from einops_fast.einsum import fast_einsum
from einops_fast.observing.tables import print_table
from einops_fast.runtime import disk_cache

Finding = tuple[str, str, str]  # what was looked at, its state (ok, missing, too old or failed), and words

_SCORES, _ATTENTION = "b i h d, b j h d -> b h i j", "b i h d, b j h d, b j h e -> b i h e"


def doctor(options: argparse.Namespace) -> int:
    """Print what was found, and return 1 if a check has failed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the cache of einops_fast", RuntimeWarning)  # it is a finding of its own
        findings = [*_packages(), *_gpus(), _cache()]
    gpu = ["cuda"] * bool(gpu_properties())
    for framework, devices in {"numpy": ["cpu"], "torch": ["cpu", *gpu], "mxnet": ["cpu"], "cupy": gpu}.items():
        if framework == "numpy" or find_spec(framework) is not None:
            findings += [_checked(framework, device) for device in devices]
    failed = any(state == "failed" for _, state, _ in findings)
    if options.json:
        head = "what", "state", "told"
        print_json({"ok": not failed, "findings": [dict(zip(head, each, strict=True)) for each in findings]})
    else:
        print_table(["what", "state", "told"], findings)
    return int(failed)


def _packages() -> Iterator[Finding]:
    yield "einops_fast", "ok", f"{__version__} in {Path(__file__).parents[1]}"
    yield "Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield from ((name, "ok", version(name)) for name in ("numpy", "opt_einsum"))
    for name, extra in EXTRAS.items():
        found = installed_version() if name == "triton" else _version_of(name) if find_spec(name) else None
        if found is None:
            yield name, "missing", f"optional: pip install 'einops_fast[{extra}]'"
        elif name == "triton" and [*map(int, re.findall(r"\d+", found)[:2])] < [*OLDEST]:
            yield name, "too old", f"{found}; the GPU kernels need {'.'.join(map(str, OLDEST))} or later"
        else:
            yield name, "ok", found


def _version_of(name: str) -> str:
    for distribution in (name, f"{name}-cuda13x", f"{name}-cuda12x"):
        with suppress(PackageNotFoundError):
            return version(distribution)
    return "of an unknown version"


def _gpus() -> Iterator[Finding]:
    if not gpu_properties():
        yield "GPU", "missing", "NVIDIA's driver finds none: arrays are computed on the CPU"
    for device in gpu_properties():
        rates = told_rates(device.name)
        known = "measured" if rates.measured else f"{rates.assumed}; einops-fast device --measure measures them"
        yield "GPU", "ok", f"{device.name}, driver {driver_version()}, rates {known}"


def _cache() -> Finding:
    folder = disk_cache.folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    told = f"{folder}, {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return "cache", "ok", f"{told}, writable"
    return "cache", "failed", f"{told}: {there} can't be written to; set EINOPS_FAST_CACHE_DIR"


def _conversions(framework: str, device: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Import a framework, and return what makes its arrays of NumPy's, and the reverse."""
    get_backend(framework)
    module: Any = sys.modules[framework]
    if framework == "torch":
        return lambda array: module.as_tensor(array, device=device), lambda found: found.cpu().numpy()
    if framework == "mxnet":
        return module.np.array, lambda found: found.asnumpy()
    return module.asarray, getattr(module, "asnumpy", np.asarray)


def _checked(framework: str, device: str) -> Finding:
    """Compute a contraction and an attention, and compare them with NumPy's in float64."""
    name, began = f"check {framework} {device}", perf_counter()
    q, k, v = (np.random.default_rng(0).standard_normal((2, length, 3, 8)) for length in (5, 6, 6))
    scores = np.einsum("bihd,bjhd->bhij", q, k)
    weights = np.exp(scores / 8**0.5)
    right = scores, np.einsum("bhij,bjhe->bihe", weights / weights.sum(-1, keepdims=True), v)
    try:
        into, back = _conversions(framework, device)
        arrays = [into(each.astype("float32")) for each in (q, k, v)]
        found = map(back, (fast_einsum(_SCORES, *arrays[:2]), attention(_ATTENTION, *arrays)))
        off = [float(abs(each - wanted).max() / abs(wanted).max()) for each, wanted in zip(found, right, strict=True)]
    except Exception as error:  # whatever is wrong with a framework that is installed
        return name, "failed", f"{type(error).__name__}: {[*str(error).strip().splitlines(), ''][-2:][0]}"
    # GPUs may round factors to 10 bits; NaN is no number below anything.
    state = "ok" if max(off) < (1e-2 if device == "cuda" else 1e-5) else "failed"
    told = f"contraction off by {off[0]:.0e}, attention by {off[1]:.0e}, in {perf_counter() - began:.1f} s"
    return name, state, told
