"""Documents say what results, docstrings and folders say; results of any age can be read."""

import json
import re

import pytest
from python_process import run_python

from einops_fast.profiles.reporting import documents, results
from einops_fast.profiles.reporting.records import Ceiling, Row, skipped
from einops_fast.profiles.reporting.results import RESULTS, ROOT, Result, read_result, reports_folder
from einops_fast.profiles.reporting.sections_reference import PAGES, REFERENCE, names_of, public_names

every_document = pytest.mark.parametrize(
    "path", documents.DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@every_document
def test_document_is_up_to_date(path):
    text = path.read_text("utf-8")
    assert documents.updated(text) == text, "run: make report"


@pytest.mark.parametrize("path", documents.kept_files("*"), ids=lambda path: path.stem)
def test_tables_of_kept_results_are_up_to_date(path):
    text = path.with_suffix(".md").read_text("utf-8")
    assert documents.tables_of(read_result(path)) == text, "run: make report"
    assert re.match(r"# [\w-]+: .*, CPU threads: \d+, .*(torch|CuPy) \d", text), "the heading says against what"


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


def test_reports_replace_no_kept_results_nor_parts_of_an_installed_package(tmp_path, monkeypatch):
    assert reports_folder() != RESULTS
    monkeypatch.setattr(results, "ROOT", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    assert reports_folder().resolve().parent == tmp_path.resolve()
