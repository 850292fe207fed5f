"""How far a long run is: lines where nobody looks, a bar on a terminal."""

import sys

import pytest

from einops_fast.observing import progress as module
from einops_fast.observing.progress import progress


def test_lines_are_few(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 6.0, 6.5, 7.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(moments))
    with progress() as told:
        for done in range(1, 5):
            told("compiled", done, 4)
        told("measured", 1, 1)
    assert capsys.readouterr().err.splitlines() == [
        "compiled 1 of 4",
        "compiled 3 of 4",
        "compiled 4 of 4",
        "measured 1 of 1",
    ]


@pytest.mark.parametrize("installed", [True, False])
def test_a_terminal_has_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if installed:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress() as told:
        for done in range(1, 4):
            told("compiled", done, 3)
    shown = capsys.readouterr().err
    assert ("3/3" if installed else "compiled 3 of 3") in shown
