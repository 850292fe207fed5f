"""Charts show every case, and what failed; the page is whole without a network."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec

import pytest

from einops_fast.observing.tables import has_failed
from einops_fast.profiles.reporting import plots
from einops_fast.profiles.reporting.charts import general_charts
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.names import NAMES
from einops_fast.profiles.reporting.records import Ceiling, Row, is_own, skipped
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result
from einops_fast.profiles.studies import STUDIES

OURS = "fast_einsum"

drawing = pytest.mark.skipif(find_spec("vl_convert") is None, reason="vl-convert-python isn't installed")


def row(case, what, seconds, **others):
    known = {"floor": 1e-3, "moved": 10**6, "flops": 10**8, "spread": seconds and seconds / 10}
    known["speedup"] = None if seconds is None else 4e-3 / seconds
    return Row("torch", case, what, "float32", "ij,jk->ik", "s", seconds, **{**known, **others})


ROWS = (
    row("near", "native", 1e-3, speedup=1.0),
    row("near", OURS, 1e-3, kernel_seconds={"gemm<a & b>": 1e-3}, peak_bytes=4096, error=1e-7),
    row("far", "native", 4e-3),
    row("far", "patched", 4e-3),
    row("far", OURS, 20e-3),
    row("scores@64", OURS, 2e-3),
    row("scores@128", OURS, 3e-3),
    row("broken", "native", 4e-3),
    row("broken", OURS, None, failure="wrong: error 1 <2>, </script> & more"),
    skipped("torch", "cutensor", "isn't installed"),
)


RESULT = Result(
    "contraction",
    "Some <GPU>",
    2,
    "2026-01-01",
    True,
    {"torch": "2"},
    ("a note",),
    ROWS,
    (Ceiling(1e12, 5e13, "torch", "float32"),),
    {"torch": {"CPU": "fast"}, "numpy": {"CPU": "fast", "clock": "1 GHz"}},
)


# Charts


def points(panel):
    return {(point["case"], point["way"]): point for point in panel["data"]["values"]}


def test_lines_are_sorted_and_none_is_missing():
    found = {chart.name: chart.spec for chart in general_charts(RESULT.measured, RESULT.ceilings[0], "torch")}
    # There are too few cases for curves, and enough for a roofline.
    assert found.keys() == {"", "native", "roofline"}
    [panel] = found[""]["concat"]
    assert panel["encoding"]["y"]["scale"]["domain"] == [
        "far  20", "scores@128  3", "scores@64  2", "near  1 ≈", "broken  failed",
    ]  # fmt: skip
    near = points(panel)["near  1 ≈", "fast_einsum (ours)"]
    # Noise is an interquartile range around the value.
    assert (near["value"], near["low"], near["high"]) == pytest.approx((1, 0.95, 1.05))
    *told, failed = found[""]["title"]["subtitle"]
    assert failed == f"failed: broken: {OURS} {ROWS[8].failure}"
    assert "≈: within noise" in "".join(told)
    # What is behind is red, and ours is never called a peer.
    [panel] = found["native"]["concat"]
    assert {case for (case, _), point in points(panel).items() if point["behind"]} == {"far  0.2"}
    ways = panel["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert ways == ["fast_einsum (ours)", "patched (ours)", "native"]
    assert not any(is_own(peer) for study in STUDIES.values() for peer in study.peers)


@drawing
def test_charts_are_drawn_and_the_same_again(tmp_path):
    kept = RESULT.write_json(tmp_path / "contraction-nvidia-h200-float32.json")
    plots.main([str(kept)])
    found = {path.name for path in tmp_path.iterdir()} - {kept.name}
    stem = "contraction-nvidia-h200-float32"
    assert found == {f"{stem}{name}.{kind}" for name in ("", "-native", "-roofline")
                     for kind in ("svg", "png")}  # fmt: skip
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / f"{stem}.svg").read_bytes()
    words = {" ".join(word.split()) for word in re.findall(r"<text[^>]*>([^<]*)", svg.decode())}
    assert {"fast_einsum (ours)", "native", "near 1 ≈", "broken failed"} <= words
    plots.main([str(kept)])
    assert (tmp_path / f"{stem}.svg").read_bytes() == svg


def test_without_vl_convert_there_are_no_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert plots.draw(RESULT, tmp_path / "c") == []
    assert "they need vl-convert-python" in capsys.readouterr().err
    assert "<img" not in html_page([RESULT])


# The page


class Outline(HTMLParser):
    """What a page asks for from elsewhere, which elements are left open, and its texts."""

    def __init__(self, page):
        super().__init__()
        self.asked, self.open, self.texts, self.anchors = [], [], [], []
        self.feed(page)
        assert {value[1:] for value in self.asked if value[0] == "#"} <= {*self.anchors}
        self.asked = [value for value in self.asked if value[0] != "#"]

    def handle_starttag(self, tag, attributes):
        self.asked += [value for name, value in attributes if name in ("src", "href") and not value.startswith("data:")]
        self.anchors += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_page_needs_nothing_from_elsewhere_and_tells_failures():
    page = html_page([RESULT])
    outline = Outline(page)
    assert outline.asked == []
    assert outline.open == []
    assert not re.search(r"@import|url\(|<script", page)
    assert {"near", "far", "broken", "cutensor", "a note", "gemm<a & b>"} <= set(outline.texts)
    # In the table of the study and in that of what failed.
    assert ["broken" in line for line in re.findall(r"<tr class=failed>.*?</tr>", page)] == [True] * 2
    # Four cases of ours were right: 4, 0.2, 2 and 4/3 times as fast.
    assert "native/ours 1.21 (4)" in page
    assert "Ours failed: broken." in page


def test_page_says_at_its_top_what_is_rough_and_what_names_mean_where_they_first_stand():
    busy = replace(RESULT, notes=("The machine was busy before: a load of 0.9.",), quick=True)
    page = html_page([RESULT, busy])
    assert max(map(page.index, ("a load of 0.9", "three rounds"))) < page.index("<nav")
    assert [text for text in re.findall("<dt>(.*?)</dt>", page) if text == "native"] == ["native"]
    assert page.index("<dt>native</dt>") < page.index("<figure>" if "<figure>" in page else "<table>")


def test_ratios_below_1_are_red_beyond_noise():
    rows = [row(case, "native", 1e-3) for case in "abc"]
    rows += [
        row(case, OURS, 1e-3 / speedup, speedup=speedup) for case, speedup in zip("abc", (0.5, 0.99, 2.0), strict=True)
    ]
    page = html_page([replace(RESULT, rows=tuple(rows))])
    assert re.findall(r'<td class="number behind">(.*?)</td>', page) == ["0.50"]
    assert '<td class="number">0.99 ≈</td>' in page


def test_nothing_is_called_failed_because_a_guest_has():
    guest = row("near", "compile", None, failure="TimeoutError: failed in time", guest=True)
    result = replace(RESULT, rows=(*ROWS[:2], guest))
    assert "class=failed" not in html_page([result])
    charts = general_charts(result.measured, RESULT.ceilings[0], "torch")
    assert not any("failed" in text for chart in charts for text in chart.spec["title"]["subtitle"])
    [table] = STUDIES["contraction"].tables(result.measured)
    assert table.cells[0][-1].startswith("right (without compile: TimeoutError: failed")
    assert not has_failed(table.cells[0])


@pytest.mark.parametrize("study", STUDIES)
def test_every_way_of_a_study_is_explained(study):
    assert {*getattr(STUDIES[study], "makers", ())} <= NAMES.keys()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_make_a_page(path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)  # drawing takes long
    result = read_result(path)
    outline = Outline(html_page([result]))
    assert outline.asked == []
    assert result.device in " ".join(outline.texts)
    assert json.dumps([chart.spec for chart in STUDIES[result.study].charts(result.measured, result.ceilings)])


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"rows": [{"colour": 1}]}'])
def test_what_is_no_result_is_told(text, tmp_path, capsys):
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as exit_:
        plots.main([str(path)])
    assert exit_.value.code == 2
    assert ("No such file" if text is None else "is no result of a study") in capsys.readouterr().err
