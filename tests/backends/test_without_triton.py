"""On a CPU all calls work without Triton, and with one that is too old; where it is there, they don't import it."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from python_process import SUPPORT, run_python

from einops_fast.backends import triton_support
from einops_fast.backends.triton_support import installed_version, why_unusable

pytest.importorskip("torch")


def cpu_calls(*arguments: str, path: Sequence[str] = ()) -> str:
    """What the program prints."""
    return run_python("-W", "error::RuntimeWarning", SUPPORT / "cpu_calls.py", *arguments, path=path).stdout.strip()


def old_triton(at: Path) -> str:
    """A package of that name, without what the kernels use."""
    (at / "triton").mkdir()
    (at / "triton" / "__init__.py").write_text("__version__ = '3.2.0'\n\ndef jit(function): return function\n")
    return str(at)


def test_absent() -> None:
    assert cpu_calls("absent", "compiled") == ""


def test_old(tmp_path: Path) -> None:
    assert cpu_calls(path=[old_triton(tmp_path)]) == ""


def test_present_but_not_imported() -> None:
    assert cpu_calls() == ""


@pytest.fixture
def unchecked() -> Iterator[None]:
    triton_support._checked.cache_clear()
    yield
    triton_support._checked.cache_clear()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (None, "Triton isn't installed"),
        ("3.2.0", "the installed one is 3.2.0"),
        ("unknown", "installed one is unknown"),
    ],
)
def test_one_warning_names_both_versions(found: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "installed_version", lambda: found)
    with pytest.warns(RuntimeWarning, match=rf"need Triton 3\.6 or later, and .*{sentence}") as warned:
        reasons = {why_unusable(), why_unusable()}
    assert len(warned) == len(reasons) == 1 and None not in reasons  # noqa: PT018 - of one answer


def test_version_is_read_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(old_triton(tmp_path))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert installed_version() == "3.2.0"
    assert "triton" not in sys.modules


def test_plans_and_first_calls_import_nothing_of_triton() -> None:
    modules = (
        "torch.einsum.autograd", "torch.memory", "torch.ops.fused",
        "torch.attention.beginning", "triton.contraction.choice",
    )  # fmt: skip
    imports = "; ".join(f"import einops_fast.backends.{module}" for module in modules)
    assert run_python("-c", f"import sys, torch; {imports}; print('triton' in sys.modules)").stdout == "False\n"
