"""How far a long run is: lines where nobody looks, a bar on a terminal."""

import sys

import pytest

from einops_fast.observing.progress import progress


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
