"""Kernels and choices as files for other machines: a folder, or a ZIP archive of it.

A bundle has `bundle.json`, which says for what it is, `choices/`, entries of the disk cache, and `kernels/`, folders of
Triton's cache. Choices are data. Kernels are programs for the GPU: bring in those of people you trust.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from einops_fast._version import __version__
from einops_fast.backends.gpu_driver import gpu_properties
from einops_fast.backends.triton_support import installed_version
from einops_fast.errors import EinsumError
from einops_fast.runtime import disk_cache
from einops_fast.runtime.choosing import kernel_hash
from einops_fast.runtime.files import write_whole

_ABOUT, _CHOICES, _KERNELS = "bundle.json", "choices", "kernels"

_NAME = re.compile(r"[\w.-]+")
"""Of a file or a folder of Triton's cache."""

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
"""What reading JSON may raise that somebody else has written."""

_GROUP = "__grp__"
"""How the names of files begin in which Triton's cache says where others are, by whole paths."""


class Brought(NamedTuple):
    """What is here now that wasn't."""

    # how many
    kernels: int
    choices: int
    # versions of libraries that choices were measured with and that aren't those here, in words: then such
    # choices don't count
    unlike: tuple[str, ...] = ()


def sources() -> dict[str, str]:
    """Return what kernels are made of: versions, and a hash of their text."""
    return {"einops_fast": __version__, "kernels": kernel_hash(), "triton": installed_version() or "none"}


def check_target(path: Path) -> None:
    """Raise EinsumError unless a bundle can be written to a path: to an archive, or into an empty folder."""
    if path.suffix != ".zip" and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise EinsumError(f"{path} isn't an empty folder; a bundle is one, or a file that ends in .zip")


@contextmanager
def kernels_folder(path: Path) -> Iterator[Path]:
    """Return where Triton's cache has to be in this block so that what it holds is in the bundle at a path."""
    if path.suffix != ".zip":
        folder = path / _KERNELS
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / _KERNELS
        folder.mkdir()
        yield folder


def pack(path: Path, kernels: Path, capability: tuple[int, int], device: str | None) -> None:
    """Write a bundle: kernels that were compiled into a folder, and all choices of these sources on a device."""
    whole, found = kernels.parent, 0
    (whole / _CHOICES).mkdir(exist_ok=True)
    for entry in disk_cache.entries():
        versions = entry.key.get("versions")
        same = isinstance(versions, dict) and versions.items() >= sources().items()
        if device is not None and same and entry.key.get("device") == device:
            shutil.copyfile(entry.path, whole / _CHOICES / entry.path.name)
            found += 1
    about = {"sources": sources(), "capability": list(capability), "device": device, "choices": found}
    (whole / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    if path.suffix == ".zip":
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.make_archive(str(path.with_suffix("")), "zip", whole)


def bring_in(path: Path) -> Brought:
    """Copy the kernels and choices of a bundle to where they are looked for on this machine."""
    if path.is_dir():
        return _bring_in(path, path)
    with tempfile.TemporaryDirectory() as made:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(made)
        except (OSError, zipfile.BadZipFile) as error:
            raise EinsumError(f"{path} is no bundle: {disk_cache.reason(error)}") from None
        return _bring_in(Path(made), path)


def _bring_in(folder: Path, given: Path) -> Brought:
    try:
        about = json.loads((folder / _ABOUT).read_text("utf-8"))
        _check(about["sources"], tuple(about["capability"]), about["device"])
    except EinsumError:
        raise
    except (OSError, *_MALFORMED) as error:
        raise EinsumError(f"{given} is no bundle: {_ABOUT} can't be read: {disk_cache.reason(error)}") from None
    choices, own, unlike = 0, _versions(), dict[str, None]()
    for file in sorted(folder.glob(f"{_CHOICES}/*.json")):
        key, record = _entry(file)
        if disk_cache.read(key) is None:
            disk_cache.write(key, record)
            choices += 1
        unlike |= {
            f"{name} {theirs}, and here it is {own[name]}": None
            for name, theirs in key["versions"].items()
            if own.get(name, theirs) != theirs
        }
    return Brought(sum(map(_copy_kernel, sorted(folder.glob(f"{_KERNELS}/*")))), choices, tuple(unlike))


def _versions() -> dict[str, str]:
    """Return the versions that choices depend on here; none where there is no GPU, or no torch."""
    if not gpu_properties():
        return {}
    try:
        from einops_fast.backends.torch.memory import TorchMemory
    except ImportError:
        return {}
    return TorchMemory().versions()


def _check(theirs: Mapping[str, str], capability: tuple[int, ...], device: str | None) -> None:
    """Raise EinsumError unless this machine has the same; where it has no GPU, any may come."""
    for name, own in sources().items():
        if theirs.get(name) != own:
            what = "source of the kernels" if name == "kernels" else f"version of {name}"
            raise EinsumError(f"the bundle was made with another {what}: {theirs.get(name)}, and here it is {own}")
    here = gpu_properties()
    if here and not any(gpu.capability == capability and device in (None, gpu.name) for gpu in here):
        major, minor = capability
        theirs_in_words = f"{device or 'GPUs'} of compute capability {major}.{minor}"
        own_in_words = ", ".join(sorted({f"{gpu.name} of {gpu.capability[0]}.{gpu.capability[1]}" for gpu in here}))
        raise EinsumError(f"the bundle is for {theirs_in_words}, and here is {own_in_words}")


def _entry(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        match json.loads(file.read_text("utf-8")):
            case {"key": {"versions": dict()} as key, "record": dict() as record}:
                return key, record
    except (OSError, *_MALFORMED):
        pass
    raise EinsumError(f"{file.name} is no choice")


def _copy_kernel(source: Path) -> bool:
    """Copy a folder of Triton's cache, and return whether it wasn't there and can be read."""
    from triton import knobs

    target = Path(knobs.cache.dir) / source.name
    if not _NAME.fullmatch(source.name) or not source.is_dir() or target.exists():
        return False
    # What says where the others are comes last: it is what Triton looks for.
    files = sorted((each for each in source.iterdir() if _is_part(each)), key=lambda each: each.name.startswith(_GROUP))
    target.mkdir(parents=True)
    try:
        for file in files:
            if not file.name.startswith(_GROUP):
                shutil.copyfile(file, target / file.name)
                continue
            names = [Path(each).name for each in json.loads(file.read_text("utf-8"))["child_paths"]]
            paths = {name: str(target / name) for name in names if (target / name).exists()}
            write_whole(target / file.name, json.dumps({"child_paths": paths}))
    except _MALFORMED:
        shutil.rmtree(target)
        return False
    return True


def _is_part(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and bool(_NAME.fullmatch(file.name))
