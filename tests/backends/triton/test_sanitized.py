"""The script for compute-sanitizer: what it has is chosen by name, and what goes wrong is told and counted."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import sanitized

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")


@pytest.mark.parametrize("name", ["loops, a sum", "boxes, split", "attention, few", "decode, lengths", "clusters, rms"])
def test_one_of_each(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitized.main([name]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(name)
    assert ": right: " in line or line.endswith("not executed here")


@pytest.mark.gpu
@pytest.mark.parametrize("name", sanitized.PROBLEMS)
def test_all(name: str) -> None:
    try:
        assert sanitized.PROBLEMS[name]()
    except sanitized.NotHereError:
        pytest.skip("not executed here")


def test_what_is_wrong_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> str:
        raise AssertionError("a reason")

    monkeypatch.setattr(sanitized, "PROBLEMS", {"one": fails, "other": lambda: "a kernel", "only": fails})
    assert sanitized.main([]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "one: WRONG: AssertionError: a reason", "other: right: a kernel", "only: WRONG: AssertionError: a reason",
    ]  # fmt: skip
    assert sanitized.main(["o"]) == 2
    assert sanitized.main(["other"]) == 0


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitized.main(["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == list(sanitized.PROBLEMS)
    assert sanitized.main(["boxes", "nothing of the kind"]) == 2
    assert "nothing of the kind" in capsys.readouterr().out
