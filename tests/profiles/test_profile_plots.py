"""The plots show every case, and what failed, without a display."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from einops_fast.profiles.contraction.study import OURS
from einops_fast.profiles.reporting import charts, plots
from einops_fast.profiles.reporting.records import Ceiling, Row
from einops_fast.profiles.reporting.results import Result

ROOT = Path(__file__).parents[2]


def row(case, what, over_floor, *, dtype="float32", framework="torch", failure="", **others):
    seconds = None if over_floor is None else over_floor * 1e-3
    return Row(framework, case, what, dtype, seconds=seconds, floor=1e-3, failure=failure, **others)


ROWS = [
    row("near", "native", 3.0),
    row("near", "cupy", 2.0),
    row("near", OURS, 1.25),
    row("far", "native", 40.0),
    row("far", "cupy", None, failure="OutOfMemoryError: no room", guest=True),
    row("far", OURS, 55.5),
    row("alone", OURS, 7.0),
    row("broken", "native", 4.0),
    row("broken", OURS, None, failure="wrong: error 1 <2>"),
]


def text(svg):
    """What can be read in an SVG."""
    return re.findall(r"<text[^>]*>([^<]*)", svg.read_text("utf-8"))


def draw(rows, stem, ceilings=()):
    return plots.draw(rows, stem, ceilings, study="contraction")


def test_lines_are_sorted_and_none_is_missing():
    [chart] = charts.general_charts(ROWS, None, "torch, float32")
    [panel] = chart.panels
    assert [(line.label, line.values, line.failed) for line in panel.lines] == [
        ("far  55.50", {"native": 40.0, OURS: 55.5}, False),
        ("alone  7.00", {OURS: 7.0}, False),
        ("near  1.25", {"native": 3.0, "cupy": 2.0, OURS: 1.25}, False),
        ("broken  failed", {"native": 4.0}, True),
    ]
    assert chart.failures == ("far: cupy OutOfMemoryError: no room", f"broken: {OURS} wrong: error 1 <2>")


def test_plot_names_every_case_and_failure(tmp_path):
    pytest.importorskip("matplotlib")
    svg, png = draw(ROWS, tmp_path / "contraction-nvidia-h200")
    assert (svg.name, png.name) == ("contraction-nvidia-h200-float32.svg", "contraction-nvidia-h200-float32.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    words = text(svg)
    for label in ("far  55.50", "alone  7.00", "near  1.25", "broken  failed"):
        assert label in words
    assert "torch, float32: time over the device's floor" in [word.replace("&#x27;", "'") for word in words]
    assert {"ours", "native", "cupy"} <= set(words)
    assert "failed: far: cupy OutOfMemoryError: no room" in words
    assert any(word.startswith("failed: broken: fast_einsum wrong: error 1") for word in words)


def test_each_framework_and_dtype_has_its_plot(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        row("near", OURS, 2.0, dtype=dtype, framework=framework)
        for framework, dtype in (("numpy", "float32"), ("torch", "float32"), ("torch", "bfloat16"))
    ]
    names = {path.stem for path in draw(rows, tmp_path / "c")}
    assert names == {"c-numpy-float32", "c-torch-float32", "c-torch-bfloat16"}


def test_backward_and_what_has_no_floor_are_not_drawn(tmp_path):
    backward = row("far", OURS, 2.0, backward=True)
    assert draw([backward, Row("torch", "tiny", "call", "float32", seconds=1e-6)], tmp_path / "c") == []
    assert not list(tmp_path.iterdir())


def test_nothing_right_is_drawn_all_the_same(tmp_path):
    pytest.importorskip("matplotlib")
    svg, _ = draw([row("broken", OURS, None, failure="wrong")], tmp_path / "c")
    assert "broken  failed" in text(svg)


def test_the_same_results_give_the_same_file(tmp_path):
    pytest.importorskip("matplotlib")
    first, second = (draw(ROWS, tmp_path / name)[0].read_bytes() for name in "ab")
    assert first == second


def test_without_matplotlib_there_are_no_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw(ROWS, tmp_path / "c") == []
    assert "they need matplotlib" in capsys.readouterr().err


def test_kept_results_are_drawn_without_a_display(tmp_path):
    pytest.importorskip("matplotlib")
    kept = tmp_path / "contraction-nvidia-h200-float32.json"
    Result("contraction", "NVIDIA H200", 1, "2026-01-01", True, {}, (), tuple(ROWS)).write_json(kept)
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "tkagg", "MPLCONFIGDIR": str(tmp_path / "config")}
    command = [sys.executable, "-m", "einops_fast.profiles.reporting.plots", str(kept)]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True)
    assert (tmp_path / "contraction-nvidia-h200-float32.svg").exists()
    assert (tmp_path / "contraction-nvidia-h200-float32.png").exists()


SWEPT = [
    row(f"matmul@{size}", what, factor, moved=size * size * 12, flops=2 * size**3, speedup=2 / factor)
    for size in (64, 256, 1024)
    for what, factor in (("native", 2.0), (OURS, 1.5))
]


def test_a_study_has_all_its_plots(tmp_path):
    pytest.importorskip("matplotlib")
    paths = draw(SWEPT, tmp_path / "c", [Ceiling("torch", "float32", 1e12, 5e13)])
    found = {path.name for path in paths}
    assert found == {
        f"c-float32{which}.{kind}" for which in ("", "-native", "-throughput", "-roofline") for kind in ("svg", "png")
    }
    assert "matmul: size" in text(tmp_path / "c-float32-throughput.svg")
    assert "TFLOP/s" in text(tmp_path / "c-float32-throughput.svg")
    assert "1000 GB/s, 50 TFLOP/s" in text(tmp_path / "c-float32-roofline.svg")
    assert "matmul@256  1.33" in text(tmp_path / "c-float32-native.svg")


def test_only_curves_are_joined():
    pytest.importorskip("matplotlib")
    found = {chart.name: plots._figure(chart) for chart in charts.general_charts(SWEPT, None, "torch")}
    joined = {name: {line.get_linestyle() for line in figure.axes[0].get_lines()} for name, figure in found.items()}
    # Of bars, the line at 1 is one.
    assert joined == {"floor": {"None", "-"}, "native": {"None", "-"}, "throughput": {"-"}, "roofline": {"None"}}
