"""The page: whole without a network or a script, and in a browser, where there is one, it draws and sorts."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, browse

from einops_fast.profiles.reporting import plots
from einops_fast.profiles.reporting.html_report import html_page, main, ours_of
from einops_fast.profiles.reporting.records import Ceiling, Row, is_own, skipped
from einops_fast.profiles.reporting.results import RESULTS, Result, read_result
from einops_fast.profiles.studies import STUDIES

OURS = "fast_einsum"


def row(case, what, seconds, **others):
    measured = {"floor": 1e-3, "moved": 10**6, "flops": 10**8, "spread": 1e-5}
    speedup = None if seconds is None else 4e-3 / seconds
    return Row("torch", case, what, "float32", "ij,jk->ik", "s", seconds, speedup=speedup, **measured, **others)


ROWS = (
    row("near", "native", 4e-3),
    row("near", OURS, 1e-3, kernel_seconds={"gemm<a & b>": 1e-3}, peak_bytes=4096, error=1e-7),
    row("far", "native", 4e-3),
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
    (Ceiling("torch", "float32", 1e12, 5e13),),
    {"torch": {"CPU": "fast"}, "numpy": {"CPU": "fast", "clock": "1 GHz"}},
)


class Outline(HTMLParser):
    """What a page asks for from elsewhere, and which elements are left open."""

    VOID = ("meta", "link", "input", "br")

    def __init__(self, page):
        super().__init__()
        self.asked, self.open, self.texts = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.asked += [value for name, value in attributes if name in ("src", "href") and not value.startswith("data:")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_page_needs_nothing_from_elsewhere():
    page = html_page([RESULT])
    outline = Outline(page)
    assert outline.asked == []
    assert outline.open == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", page)
    assert {"near", "far", "broken", "cutensor", "a note", "gemm<a & b>"} <= set(outline.texts)


def test_what_failed_is_red_and_in_no_summary():
    page = html_page([RESULT])
    [failed] = re.findall(r'<tr class="failed">.*?</tr>', page)
    assert "broken" in failed
    # Four cases of ours were right: 4, 0.2, 2 and 4/3 times as fast.
    assert "1.21×" in page
    assert "(4 cases)" in page
    assert re.search(r"<b>1</b>failed, torch, float32, forward", page)


def test_ours_is_found_by_its_name():
    assert ours_of(ROWS) == OURS
    assert ours_of([row("a", "ours", 1.0)]) == "ours"
    assert ours_of([row("a", "native", 1.0)]) == ""


def test_own_ways_are_no_peers():
    rows = [row("a", what, 1.0) for what in ("native", OURS, "patched", "triton")]
    page = html_page([replace(RESULT, rows=tuple(rows))])
    assert json.loads(re.search(r'id="data">(.*?)</script>', page).group(1))[0]["own"] == [
        OURS,
        "patched",
        "triton",
    ]
    assert not any(is_own(peer) for study in STUDIES.values() for peer in study.peers)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_make_a_page(path, tmp_path):
    main([str(tmp_path / "page.html"), str(path)])
    outline = Outline((tmp_path / "page.html").read_text("utf-8"))
    assert outline.asked == []
    assert read_result(path).device in " ".join(outline.texts)


def test_what_is_no_result_is_told(tmp_path, capsys):
    (tmp_path / "list.json").write_text("[]")
    for file, message in (("nowhere.json", "No such file"), (str(tmp_path / "list.json"), "is no result of a study")):
        for command, arguments in ((main, [str(tmp_path / "page.html"), file]), (plots.main, [file])):
            with pytest.raises(SystemExit) as exit_:
                command(arguments)
            assert exit_.value.code == 2
            assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


PROBE = """
<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
const rows = () => [...document.querySelectorAll("#rows-0 tbody tr:not([hidden])")];
const cells = (name) => rows().map((row) => row.querySelector(name).textContent);
const found = {};
addEventListener("load", () => {
  const heads = [...document.querySelectorAll("#rows-0 th button")];
  const head = heads.find((each) => each.textContent === "median ms");
  const place = `td:nth-child(${heads.indexOf(head) + 1})`;
  found.before = cells(place);
  head.click();
  found.ascending = cells(place);
  found.sort = head.parentElement.getAttribute("aria-sort");
  head.click();
  found.descending = cells(place);
  heads.find((each) => each.textContent === "case").click();
  found.cases = cells("td:nth-child(3)");
  const filter = document.querySelector("input[data-filters]");
  filter.value = "far native";
  filter.dispatchEvent(new Event("input"));
  found.filtered = cells("td:nth-child(3)");
  found.charts = Object.fromEntries([...document.querySelectorAll("figure[data-chart]")].map(
    (figure) => [figure.dataset.chart, figure.hidden ? 0 : figure.querySelectorAll("svg").length]));
  found.marks = document.querySelectorAll("svg circle, svg rect, svg path").length;
  found.legend = document.querySelector(".legend").textContent;
  found.red = [...document.querySelectorAll("svg text.bad")].map((text) => text.firstChild.textContent);
  const paper = () => getComputedStyle(document.body).backgroundColor;
  const first = paper();
  document.getElementById("theme").click();
  found.themes = [first, paper()];
  found.width = [document.documentElement.scrollWidth, innerWidth];
  found.errors = errors;
  const told = document.createElement("pre");
  told.id = "probe";
  told.textContent = JSON.stringify(found);
  document.body.append(told);
});
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_in_a_browser(tmp_path, width, dark):
    options = [f"--window-size={width},900"]
    if dark:
        options.append("--blink-settings=preferredColorScheme=0")
    page = html_page([RESULT]).replace("<body>", f"<body>{PROBE}", 1)
    dom, console = browse(page, tmp_path, *options)
    assert console == []
    found = json.loads(Outline(re.search(r'<pre id="probe">.*</pre>', dom)[0]).texts[0])
    assert found["errors"] == []
    assert found["before"][:2] == ["4.0000", "1.0000"]
    assert found["ascending"] == ["1.0000", "2.0000", "3.0000", "4.0000", "4.0000", "4.0000", "20.0000", "–", "–"]
    assert found["sort"] == "ascending"
    # What has no time is last in either direction.
    assert found["descending"] == ["20.0000", "4.0000", "4.0000", "4.0000", "3.0000", "2.0000", "1.0000", "–", "–"]
    assert found["cases"] == sorted(found["cases"])
    assert found["filtered"] == ["far"]
    assert found["charts"] == {"native": 1, "floor": 1, "throughput": 2, "roofline": 1}
    assert found["marks"] > 15
    assert found["legend"] == "fast_einsum (ours)native"
    assert found["red"] == ["broken  failed"] * 2
    light, night = "rgb(255, 255, 255)", "rgb(20, 23, 26)"
    assert found["themes"] == ([night, light] if dark else [light, night])
    # Wide tables scroll by themselves, the page never does.
    assert found["width"][0] <= found["width"][1]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_page_of_kept_results_in_a_browser(tmp_path):
    results = [read_result(path) for path in sorted(Path(RESULTS).glob("*.json"))]
    dom, console = browse(html_page(results), tmp_path, "--window-size=390,900")
    assert console == []
    assert dom.count("<svg") >= 3
