"""The command ``einops-fast doctor``: what is installed and what is missing, and a check of each backend."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from einops_fast._version import __version__
from einops_fast.attention.attend import attention
from einops_fast.backends.gpu_driver import driver_version, gpu_properties
from einops_fast.backends.gpus import told_rates
from einops_fast.backends.triton_support import OLDEST, installed_version
from einops_fast.commands.output import EXTRAS, print_json
from einops_fast.commands.parser import add_json
from einops_fast.einsum import fast_einsum
from einops_fast.observing.tables import print_table
from einops_fast.runtime import disk_cache

__all__ = ["add_to"]

_SCORES, _ATTENTION = "b i h d, b j h d -> b h i j", "b i h d, b j h d, b j h e -> b i h e"


class Finding(NamedTuple):
    """Something that was looked at: it is ``ok``, ``missing``, ``too old`` or ``failed``."""

    what: str
    state: str
    told: str


def add_to(commands: Any) -> None:
    """Add the command's parser to those of others."""
    parser = commands.add_parser(
        "doctor",
        help="say what is installed, what is missing, and check each backend",
        description="Print what was found and what is missing, and compute a contraction and an attention on each "
        "backend. The exit status is 1 if a check has failed.",
    )
    add_json(parser)
    parser.set_defaults(answer=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    findings = [*_packages(), *_gpus(), _cache(), *map(_checked, _checks())]
    failed = any(each.state == "failed" for each in findings)
    if options.json:
        print_json({"ok": not failed, "findings": [each._asdict() for each in findings]})
    else:
        print_table(["what", "state", "told"], [list(each) for each in findings])
    return int(failed)


def _packages() -> Iterator[Finding]:
    yield Finding("einops_fast", "ok", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in ("numpy", "opt_einsum"):
        yield Finding(name, "ok", version(name))
    for name, extra in EXTRAS.items():
        found = installed_version() if name == "triton" else _version_of(name)
        if found is None:
            yield Finding(name, "missing", f"optional: pip install 'einops_fast[{extra}]'")
        elif name == "triton" and [*map(int, re.findall(r"\d+", found)[:2])] < [*OLDEST]:
            yield Finding(name, "too old", f"{found}; the GPU kernels need {'.'.join(map(str, OLDEST))} or later")
        else:
            yield Finding(name, "ok", found)


def _version_of(name: str) -> str | None:
    """Return the version of a package that can be imported; the name of its distribution may be longer."""
    if find_spec(name) is None:
        return None
    for distribution in (name, f"{name}-cuda13x", f"{name}-cuda12x"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            pass
    return "of an unknown version"


def _gpus() -> Iterator[Finding]:
    devices = gpu_properties()
    if not devices:
        yield Finding("GPU", "missing", "NVIDIA's driver finds none: arrays are computed on the CPU")
    for device in devices:
        rates = told_rates(device.name)
        known = "measured" if rates.measured else f"{rates.assumed}; einops-fast device --measure measures them"
        yield Finding("GPU", "ok", f"{device.name}, driver {driver_version()}, rates {known}")


def _cache() -> Finding:
    folder = disk_cache.folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    told = f"{folder}, {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding("cache", "ok", f"{told}, writable")
    return Finding("cache", "failed", f"{told}: {there} can't be written to; set EINOPS_FAST_CACHE_DIR")


def _checks() -> Iterator[tuple[str, Callable[[], tuple[Callable[[Any], Any], Callable[[Any], Any]]]]]:
    """Yield names of backends and devices, and what imports them and returns conversions from and to NumPy's arrays."""
    yield "numpy", lambda: (lambda array: array, np.asarray)
    if find_spec("torch") is not None:
        yield "torch cpu", lambda: _torch("cpu")
        if gpu_properties():
            yield "torch gpu", lambda: _torch("cuda")
    if find_spec("mxnet") is not None:
        yield "mxnet cpu", _mxnet
    if find_spec("cupy") is not None and gpu_properties():
        yield "cupy gpu", _cupy


def _torch(device: str) -> Any:
    import torch

    return lambda array: torch.as_tensor(array, device=device), lambda found: found.cpu().numpy()


def _mxnet() -> Any:
    from einops_fast.backends import get_backend

    get_backend("mxnet")  # which mends what MXNet needs of NumPy
    import mxnet

    return mxnet.np.array, lambda found: found.asnumpy()


def _cupy() -> Any:
    import cupy

    return cupy.asarray, cupy.asnumpy


def _checked(check: tuple[str, Callable[[], Any]]) -> Finding:
    """Compute a contraction and an attention, and compare them with NumPy's in float64."""
    name, conversions = check
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, length, 3, 8)) for length in (5, 6, 6))
    scores = np.einsum("bihd,bjhd->bhij", q, k)
    weights = np.exp(scores / 8**0.5)
    attended = np.einsum("bhij,bjhe->bihe", weights / weights.sum(-1, keepdims=True), v)
    began = perf_counter()
    try:
        into, back = conversions()
        arrays = [into(each.astype("float32")) for each in (q, k, v)]
        found = fast_einsum(_SCORES, *arrays[:2]), attention(_ATTENTION, *arrays)
        pairs = zip(map(back, found), (scores, attended), strict=True)
        off = [float(np.abs(each - right).max() / np.abs(right).max()) for each, right in pairs]
    except Exception as error:  # whatever is wrong with a framework that is installed
        reason = str(error).strip().splitlines()
        return Finding(f"check {name}", "failed", f"{type(error).__name__}: {reason[-1] if reason else ''}")
    told = f"contraction off by {off[0]:.0e}, attention by {off[1]:.0e}, in {perf_counter() - began:.1f} s"
    right = max(off) < (1e-2 if name.endswith("gpu") else 1e-5)  # GPUs may round factors to 10 bits
    return Finding(f"check {name}", "ok" if right else "failed", told)
