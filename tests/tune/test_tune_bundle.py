"""Kernels and choices for other machines: what is packed, what is brought in, and what is refused."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from einops_fast.backends.gpu_driver import GpuProperties
from einops_fast.errors import EinsumError
from einops_fast.runtime import disk_cache
from einops_fast.tune import bundle

pytest.importorskip("triton")

H200 = GpuProperties("H200", (9, 0), 132, 1.98e9, 3.201e9, 6144, 50 << 20)

A100 = GpuProperties("A100", (8, 0), 108, 1.41e9, 1.215e9, 5120, 40 << 20)

FOLDER = "AB12_-C"


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GpuProperties]:
    """The GPUs that there are, and empty caches."""
    found = [H200]
    monkeypatch.setattr(bundle, "gpu_properties", lambda: tuple(found))
    move_caches(monkeypatch, tmp_path / "first")
    return found


def move_caches(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(folder / "choices"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))


def made(path: Path, device: str | None = "H200") -> Path:
    """Pack a kernel and some choices, of which one counts."""
    versions = bundle.sources()
    for name, kept in (("ours", versions), ("older", {**versions, "kernels": "0"})):
        disk_cache.write({"problem": name, "device": "H200", "versions": kept}, {"choice": name})
    disk_cache.write({"problem": "ours", "device": "A100", "versions": versions}, {"choice": "other"})
    with bundle.kernels_folder(path) as kernels:
        folder = kernels / FOLDER
        folder.mkdir()
        (folder / "kernel.cubin").write_bytes(b"machine code")
        (folder / "kernel.json").write_text("{}")
        places = {name: str(folder / name) for name in ("kernel.cubin", "kernel.json", "gone.ptx")}
        (folder / "__grp__kernel.json").write_text(json.dumps({"child_paths": places}))
        bundle.pack(path, kernels, (9, 0), device)
    return path


@pytest.mark.parametrize("name", ["bundle", "bundle.zip"])
def test_another_machine_finds_what_was_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = made(tmp_path / "there" / name)
    move_caches(monkeypatch, tmp_path / "second")
    assert bundle.bring_in(path) == (1, 1, ())
    (entry,) = disk_cache.entries()
    assert (entry.key["problem"], entry.record) == ("ours", {"choice": "ours"})
    folder = tmp_path / "second" / "triton" / FOLDER
    assert (folder / "kernel.cubin").read_bytes() == b"machine code"
    places = json.loads((folder / "__grp__kernel.json").read_text())["child_paths"]
    assert places == {name: str(folder / name) for name in ("kernel.cubin", "kernel.json")}
    disk_cache.write(entry.key, {"choice": "mine"})
    assert bundle.bring_in(path) == (0, 0, ())
    assert disk_cache.read(entry.key) == {"choice": "mine"}


def test_choices_of_other_versions_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("einops_fast.backends.torch.memory").TorchMemory
    versions = {**bundle.sources(), "torch": "1.0", "driver": "535.1"}
    disk_cache.write({"problem": "theirs", "device": "H200", "versions": versions}, {"choice": "one"})
    path = made(tmp_path / "bundle.zip")
    monkeypatch.setattr(memory, "versions", lambda self: {"torch": "1.0", "driver": "550.2"})
    assert bundle.bring_in(path).unlike == ("driver 535.1, and here it is 550.2",)


H100 = H200._replace(name="H100")


@pytest.mark.parametrize(
    ("device", "here", "brings_in"),
    [
        ("H200", [], True),  # any may come where no GPU is
        ("H200", [A100, H200], True),
        ("H200", [A100], False),
        ("H200", [H100], False),
        (None, [H100], True),  # kernels alone are for any model of a capability
        (None, [A100], False),
    ],
)
def test_which_gpus_a_bundle_is_for(
    tmp_path: Path, gpus: list[GpuProperties], device: str | None, here: list[GpuProperties], brings_in: bool
) -> None:
    path = made(tmp_path / "bundle.zip", device)
    gpus[:] = here
    if brings_in:
        assert bundle.bring_in(path).kernels == 1
        return
    own, theirs = here[0], device or "GPUs"
    words = rf"the bundle is for {theirs} of compute capability 9\.0, and here is {own.name} of {own.capability[0]}\.0"
    with pytest.raises(EinsumError, match=words):
        bundle.bring_in(path)


@pytest.mark.parametrize("name", ["triton", "kernels", "einops_fast"])
def test_other_sources_are_refused(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / "bundle")
    about = json.loads((path / "bundle.json").read_text())
    about["sources"][name] = "0"
    (path / "bundle.json").write_text(json.dumps(about))
    what = "source of the kernels" if name == "kernels" else f"version of {name}"
    with pytest.raises(EinsumError, match=f"the bundle was made with another {what}: 0, and here it is"):
        bundle.bring_in(path)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"no archive",
        {},
        {"bundle.json": "[]"},
        {"bundle.json": '{"sources": []}'},
        {"bundle.json": '{"sources": [], "capability": [9, 0], "device": null}'},
    ],
)
def test_what_is_no_bundle_is_one_error(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "bundle.zip"
    if isinstance(content, dict):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(EinsumError, match=rf"{re.escape(str(path))} is no bundle: |the bundle was made with another"):
        bundle.bring_in(path)


def test_nothing_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the names in an archive are."""
    path = made(tmp_path / "bundle.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("kernels/../../evil/kernel.cubin", "x")
        archive.writestr("kernels/two words/kernel.cubin", "x")
        archive.writestr(f"kernels/{FOLDER}/deeper/kernel.cubin", "x")
    move_caches(monkeypatch, tmp_path / "second")
    bundle.bring_in(path)
    triton = tmp_path / "second" / "triton"
    assert {each.name for each in triton.iterdir()} <= {FOLDER, "evil"}
    assert not [each for each in tmp_path.rglob("evil") if triton not in each.parents]
    assert not (triton / FOLDER / "deeper").exists()


def test_a_bundle_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for path in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(EinsumError, match="isn't an empty folder; a bundle is one"):
            bundle.check_target(path)
    bundle.check_target(tmp_path / "new")
    bundle.check_target(tmp_path / "new.zip")
