"""The agreement on measured choices: its keys, what another process wrote meanwhile, and how it is forgotten."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from einops_fast import attention, fast_einsum
from einops_fast.runtime import choosing, disk_cache
from einops_fast.runtime.choosing import Chooser, Record, circumstances, recall
from einops_fast.runtime.plan_cache import clear_plans

KEY = {"problem": "one", "device": "a GPU"}


def record(choice: str) -> dict[str, Any]:
    return {"choice": choice, "seconds": 1.0, "candidates": {choice: 1.0}}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    clear_plans()


def chosen(measure: Callable[[], Record | None], mode: str = "wait", key: Any = KEY) -> str:
    """Choose between two ways, of which none that is gone can be run."""
    choice = Chooser[str](mode).choose(
        key,
        lambda name: None if name == "gone" else name,
        lambda: ["one", "two"],
        lambda: "predicted",
        "meanwhile",
        lambda ways: measure(),
    )
    assert choice.final
    return choice.way


def test_a_choice_is_measured_once() -> None:
    assert [chosen(partial(record, name)) for name in ("fast", "later")] == ["fast", "fast"]
    assert recall(KEY, "always") == record("fast")
    clear_plans()  # the disk outlives the process
    assert recall(KEY, "always") is None
    assert recall(KEY, "never") == record("fast")
    assert chosen(lambda: None, "never") == "fast"
    assert chosen(lambda: None, "reproducible") == "predicted"


@pytest.mark.parametrize(("mode", "written", "agreed"), [
    ("wait", "theirs", "theirs"), ("wait", "gone", "ours"), ("always", "theirs", "ours"),
])  # fmt: skip
def test_what_another_process_wrote_meanwhile_stands_where_it_can_be_run(mode: str, written: str, agreed: str) -> None:
    def meanwhile() -> dict[str, Any]:
        disk_cache.write(KEY, record(written))
        return record("ours")

    assert chosen(meanwhile, mode) == agreed
    assert disk_cache.read(KEY) == record(agreed)


def test_nothing_is_kept_where_nothing_worked() -> None:
    assert chosen(lambda: None) == "meanwhile"
    assert recall(KEY, "auto") is None


@pytest.mark.parametrize("found", [5, None, ["fast"], True])
def test_a_choice_that_is_no_name_is_a_miss(found: Any) -> None:
    disk_cache.write(KEY, {"choice": found})
    assert recall(KEY, "auto") is None


def test_an_edited_kernel_never_meets_an_old_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "kernels" / "norm.py"
    source.parent.mkdir()
    source.write_text("tile = 64\n")
    monkeypatch.setattr(choosing, "_KERNELS", source.parent)

    def key() -> dict[str, Any]:
        choosing.kernel_hash.cache_clear()
        return {"problem": "one", **circumstances("a GPU", {})}

    try:
        chosen(lambda: record("fast"), key=key())
        assert recall(key(), "auto") == record("fast")
        source.write_text("tile = 128\n")
        assert recall(key(), "auto") is None
        source.write_text("tile = 64\n")
        source.rename(source.with_name("moved.py"))
        assert recall(key(), "auto") is None
    finally:
        choosing.kernel_hash.cache_clear()


def test_the_hash_is_of_all_kernels() -> None:
    names = {path.relative_to(choosing._KERNELS).as_posix() for path in choosing._KERNELS.rglob("*.py")}
    assert {"rows/norm/kernel.py", "attention/hopper/forward.py", "contraction/boxes/kernel.py"} <= names


def _sizes() -> dict[tuple[str, str], int]:
    modules = [(name, each) for name, each in sys.modules.items() if name.startswith("einops_fast")]
    return {
        (name, attribute): len(value)
        for name, module in modules
        if isinstance(module, ModuleType)
        for attribute, value in vars(module).items()
        if isinstance(value, dict) and not attribute.startswith("__")
    }


def test_every_cache_is_emptied_with_the_plans() -> None:
    q = np.ones((2, 3, 4))

    def calls() -> None:
        fast_einsum("bid,bjd->bij", q, q)
        fast_einsum("bid,bjd,bje->bie", q, q, q)
        attention("b i d, b j d, b j e -> b i e", q, q, q)
        chosen(lambda: record("fast"))

    calls()  # whatever is loaded at the first call, such as backends
    clear_plans()
    before = _sizes()
    calls()
    grown = {each for each, size in _sizes().items() if size > before.get(each, 0)}
    assert {("einops_fast.attention.attend", "_calls"), ("einops_fast.runtime.plan_cache", "compiled")} <= grown
    clear_plans()
    assert _sizes() == before
