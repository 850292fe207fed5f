"""Documents, charts and the page say what results, docstrings and folders say; results of any age can be read."""

import json
import re
from collections import Counter
from html import unescape
from importlib.util import find_spec

import pytest
from python_process import run_python

from einops_fast.profiles.reporting import documents, plots, results
from einops_fast.profiles.reporting.charts import general_charts
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.records import Ceiling, Row, is_own, skipped
from einops_fast.profiles.reporting.report import markdown_table
from einops_fast.profiles.reporting.results import RESULTS, ROOT, Result, read_result, reports_folder
from einops_fast.profiles.reporting.sections_reference import PAGES, REFERENCE, names_of, public_names
from einops_fast.profiles.studies import STUDIES

every_document = pytest.mark.parametrize(
    "path", documents.DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@every_document
def test_document_is_up_to_date(path):
    text = path.read_text("utf-8")
    assert documents.updated(text) == text, "run: make report"


def test_every_section_stands_somewhere():
    text = "".join(path.read_text("utf-8") for path in documents.DOCUMENTS)
    begun, ended = (sorted(re.findall(rf"<!-- {mark}((?:results|reference):[\w-]+) -->", text)) for mark in ("", "/"))
    assert begun == ended
    assert set(begun) == documents.SECTIONS.keys()


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


# The reference


@pytest.mark.parametrize(
    "module", ["einops_fast", "einops_fast.attention", "einops_fast.metrics", "einops_fast.nn", "einops_fast.ops"]
)
def test_every_public_name_is_on_a_page(module):
    listed = {name for page in PAGES for _, name in names_of(page)}
    assert set(public_names(module)) <= listed


@pytest.mark.parametrize("page", PAGES)
def test_every_name_has_its_docstring(page):
    text = REFERENCE[page]()
    for module, name in names_of(page):
        assert f"### `{name}`\n\n`from {module} import {name}`" in text
    assert not re.search(r":(func|class|mod|data|meth):`|``", text.replace("```", ""))


# Links and paths


def headings(path):
    """The anchors of a document, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def broken_links(path):
    """The relative links that lead to no file, or to no heading of a document."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"\w+:", target):
            name, _, anchor = target.partition("#")
            file = path.parent / name if name else path
            if not file.exists() or (anchor and anchor not in headings(file)):
                yield target


FOLDERS = "docs", "examples", "tests", "profiles", "backends", "einops_fast", ".github"
MARKDOWN = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")} | {*ROOT.glob("*.md")}


@pytest.mark.parametrize("path", sorted(MARKDOWN), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    assert not list(broken_links(path))


def test_the_site_has_every_document():
    text = (ROOT / "docs" / "mkdocs.yml").read_text("utf-8")
    pages = re.findall(r"^ +- (\S+\.md)$", text, re.MULTILINE)
    there = {
        path.relative_to(ROOT).as_posix() for folder in ("docs", "profiles") for path in (ROOT / folder).rglob("*.md")
    }
    assert len(pages) == len(set(pages))
    assert {page for page in pages if not (ROOT / page).is_file()} == set()
    assert {page for page in there if page.startswith(("docs/", "profiles/results/"))} <= set(pages)


def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    source = tmp_path / "source"
    source.mkdir()
    for name in "README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples profiles".split():
        (source / name).symlink_to(ROOT / name)
    config = (ROOT / "docs" / "mkdocs.yml").read_text("utf-8")
    (tmp_path / "mkdocs.yml").write_text(config.replace("../build/site-source", "source").replace("../build/", ""))
    run_python("-m", "mkdocs", "build", cwd=tmp_path, NO_MKDOCS_2_WARNING=1)
    assert 'id="choices-by-measurement"' in (tmp_path / "site/docs/reference/einops_fast.html").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "design").glob("*.md")), ids=lambda path: path.stem)
def test_design_names_files_that_are_there(path):
    named = re.findall(r"`((?:einops_fast|backends|profiles|tests)/[\w/]+(?:\.py)?)`", path.read_text("utf-8"))
    assert named
    # A checkout has the folders beside the package, an sdist in it.
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "einops_fast" / name).exists()] == []


# Kept results


def test_a_result_is_read_as_it_was_written(tmp_path):
    rows = (
        Row("torch", "a", "fast_einsum", "float32", "e", "s", 1.0, 0.1, 2.0, 0.5, moved=4, kernel_seconds={"k": 1.0}),
        Row("numpy", "a", "b", seconds=1.0),
        skipped("cupy", "everything", "no GPU", details="Traceback"),
    )
    ceilings, environment = (Ceiling(1.0, 2.0, "torch", "float32"),), {"torch": {"CPU": "some"}}
    about = "contraction", "GPU", 2, "2026-01-01", False, {"torch": "2"}, ("note",)
    written = Result(*about, rows, ceilings, environment)
    path = written.write_json(tmp_path / "r.json")
    assert read_result(path) == written
    assert [row.case for row in written.measured] == ["a", "a"]
    # What wasn't measured isn't in the file.
    plain = {"framework": "numpy", "case": "a", "what": "b", "seconds": 1.0}
    assert json.loads(path.read_text("utf-8"))["rows"][1] == plain


def test_a_cell_stays_in_its_column_and_line():
    assert markdown_table(("a",), [("x|y\nz",)]).splitlines()[-1] == "| x\\|y z |"


def test_reports_replace_no_kept_results_nor_parts_of_an_installed_package(tmp_path, monkeypatch):
    assert reports_folder() != RESULTS
    monkeypatch.setattr(results, "ROOT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    assert reports_folder().resolve().parent == tmp_path.resolve()


# Charts and the page


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


def points(panel):
    return {(point["case"], point["way"]): point for point in panel["data"]["values"]}


def test_lines_are_sorted_and_none_is_missing():
    found = {chart.name: chart.spec for chart in general_charts(RESULT.measured, RESULT.ceilings[0], "torch")}
    assert found.keys() == {"", "native", "throughput", "roofline"}
    [panel] = found[""]["concat"]
    assert panel["encoding"]["y"]["scale"]["domain"] == [
        "far  20", "scores@128  3", "scores@64  2", "near  1", "broken  failed",
    ]  # fmt: skip
    near = points(panel)["near  1", "fast_einsum (ours)"]
    # Noise is an interquartile range around the value.
    assert (near["value"], near["low"], near["high"]) == pytest.approx((1, 0.95, 1.05))
    assert found[""]["title"]["subtitle"] == [f"failed: broken: {OURS} {ROWS[8].failure}"]
    # What is behind is red, and ours is never called a peer.
    [panel] = found["native"]["concat"]
    assert {case for (case, _), point in points(panel).items() if point["behind"]} == {"far  0.2"}
    ways = panel["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert ways == ["fast_einsum (ours)", "patched (ours)", "native"]
    assert not any(is_own(peer) for study in STUDIES.values() for peer in study.peers)


def test_only_curves_are_joined_and_the_roof_is_that_of_the_device():
    found = {chart.name: chart.spec for chart in general_charts(RESULT.measured, RESULT.ceilings[0], "torch")}
    others, scores = found["throughput"]["concat"]
    assert [panel["layer"][0]["mark"] == "line" for panel in (others, scores)] == [False, True]
    [panel] = found["roofline"]["concat"]
    roof, label = (layer["data"]["values"] for layer in panel["layer"][-2:])
    assert [(corner["x"], corner["value"]) for corner in roof] == [(50, 50), (100, 50)]
    assert label[0]["told"] == "1000 GB/s, 50 TFLOP/s"


@pytest.mark.parametrize(
    ("study", "cases", "names"),
    [
        ("contraction", ("near", "a@64"), {"", "-native", "-throughput", "-roofline"}),
        ("attention", ("row-a", "decode-b"), {"-row", "-decode"}),
        ("ops", ("softmax@256", "bert-large-layer"), {"-columns-forward", "-columns-backward", "-ratios"}),
    ],
)
def test_each_study_has_its_charts(study, cases, names):
    ours = STUDIES[study].ours
    rows = [row(case, what, 1e-3, backward=backward)
            for case in cases for what in (ours, "native") for backward in (False, True)]  # fmt: skip
    found = STUDIES[study].charts([*rows, row(cases[0], ours, None, failure="x")], RESULT.ceilings)
    assert {chart.name for chart in found} == {f"float32{name}" for name in names}
    assert STUDIES["contraction"].charts([Row("torch", "tiny", "call", "float32", seconds=1e-6)], ()) == []


@drawing
def test_charts_are_drawn_and_the_same_again(tmp_path):
    kept = RESULT.write_json(tmp_path / "contraction-nvidia-h200-float32.json")
    plots.main([str(kept)])
    found = {path.name for path in tmp_path.iterdir()} - {kept.name}
    stem = "contraction-nvidia-h200-float32"
    assert found == {f"{stem}{name}.{kind}" for name in ("", "-native", "-throughput", "-roofline")
                     for kind in ("svg", "png")}  # fmt: skip
    assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / f"{stem}.svg").read_bytes()
    words = {" ".join(word.split()) for word in re.findall(r"<text[^>]*>([^<]*)", svg.decode())}
    assert {"fast_einsum (ours)", "native", "near 1", "broken failed"} <= words
    plots.main([str(kept)])
    assert (tmp_path / f"{stem}.svg").read_bytes() == svg


def test_without_vl_convert_there_are_no_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert plots.draw(RESULT, tmp_path / "c") == []
    assert "they need vl-convert-python" in capsys.readouterr().err
    assert "<img" not in html_page([RESULT])


# The page


def outline(page):
    """What a page asks for from elsewhere, and its texts; each element that it opens has an end."""
    begun, ended = (Counter(re.findall(rf"<{end}(\w+)", page)) for end in ("", "/"))
    assert begun - Counter({tag: begun[tag] for tag in ("meta", "link", "img")}) == ended
    texts = list(map(unescape, re.findall(r">([^<]+)<", page)))
    return re.findall(r'(?:src|href)="(?!data:)([^"]*)"', page), texts


def test_page_needs_nothing_from_elsewhere_and_tells_failures():
    page = html_page([RESULT])
    asked, texts = outline(page)
    assert asked == []
    assert not re.search(r"@import|url\(|<script", page)
    assert {"near", "far", "broken", "cutensor", "a note", "gemm<a & b>"} <= set(texts)
    # In the table of the study and in that of what failed.
    assert ["broken" in line for line in re.findall(r"<tr class=failed>.*?</tr>", page)] == [True] * 2
    # Four cases of ours were right: 4, 0.2, 2 and 4/3 times as fast.
    assert "native/ours 1.21 (4)" in page
    assert "Ours failed: broken." in page


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_make_a_page(path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)  # drawing takes long
    result = read_result(path)
    asked, texts = outline(html_page([result]))
    assert asked == []
    assert result.device in " ".join(texts)
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
