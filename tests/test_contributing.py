"""Documents for contributors, versions that are tested, and what `make release` makes of README and CHANGELOG."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from python_process import ROOT

import einops_fast
from einops_fast.profiles.reporting.documents import SECTIONS

GROUPS = ["Added", "Changed", "Fixed", "Removed"]


@pytest.fixture
def root(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.rootpath


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_lines_have_at_most_120_characters(root: Path, name: str) -> None:
    lines = (root / name).read_text("utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


def test_changelog_lists_versions_from_the_newest_and_entries_by_group(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text("utf-8")
    unreleased, *released = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert unreleased == "Unreleased"
    versions = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) – \d{4}-\d\d-\d\d", title) for title in released]
    numbers = [tuple(map(int, version.groups())) for version in versions if version]
    assert len(numbers) == len(released)
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[-1] == (0, 1, 0)
    for number, version in enumerate(re.split(r"^## ", text, flags=re.MULTILINE)[1:]):
        before, *groups = re.split(r"^### ", version, flags=re.MULTILINE)
        assert "\n- " not in before
        titles = [group.splitlines()[0] for group in groups]
        assert titles == [name for name in GROUPS if name in titles]
        assert titles or not number  # Nothing is unreleased right after a release
        assert all("\n- " in group for group in groups)


def test_contributing_names_files_that_exist(root: Path) -> None:
    text = (root / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(r"`((?:backends|docs|einops_fast|profiles|tests)/[\w./]*)`", text)
    assert len(paths) > 20
    # A checkout has the folders beside the package, an sdist in it.
    homes = root, root / "einops_fast"
    assert [path for path in paths if "NAME" not in path and not any((home / path).exists() for home in homes)] == []


def test_make_lists_its_targets(root: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make isn't installed")
    listed = subprocess.run(["make", "-s"], cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    targets = re.findall(r"^\.PHONY: (.*)", (root / "Makefile").read_text("utf-8"), re.MULTILINE)[0].split()
    assert re.findall(r"^make (\w+) +\w", listed, re.MULTILINE) == [name for name in targets if name != "about"]
    told = subprocess.run(["make", "-n", "profile"], cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.index("profiles/reports") < told.index("-m einops_fast.profiles"), "before it begins"


def test_coverage_is_of_every_folder_of_the_package(root: Path) -> None:
    config = ConfigParser()
    config.read(root / "setup.cfg")
    package = root / "einops_fast"
    linked = {path.resolve() for path in package.iterdir() if path.is_symlink()}
    if not linked:
        pytest.skip("only a checkout has links, which coverage doesn't follow")
    measured = {(root / name).resolve() for name in config["coverage:run"]["source"].split()}
    assert measured == {package.resolve(), *linked}


_spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
assert _spec
assert _spec.loader
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)

# README.md itself has links below a home in an sdist.
README = (ROOT / "docs" / "README.md").read_text("utf-8")
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n{}\n## 0.2.0 – 2026-12-01\n\n### Added\n\n- b\n\n## 0.1.0 – 2026-11-21\n\n- a\n"
)


def relative_links(text: str) -> list[str]:
    return re.findall(r"\]\((?!\w+:)([^)#][^)]*)\)", text)


def test_no_document_has_the_version_which_a_release_sets():
    versioned = [name for name, section in SECTIONS.items() if repr(einops_fast.__version__) in section()]
    assert versioned == []


def test_links_lead_below_the_home_that_is_given():
    page = release.for_package_page(README, "https://example.org/tree/v1/")
    assert relative_links(README)
    assert not relative_links(page)
    assert {f"https://example.org/tree/v1/{target}" for target in relative_links(README)} <= set(
        re.findall(r"\]\(([^)\s]+)\)", page)
    )


def test_without_a_home_links_are_text_and_pictures_are_left_out():
    text = "see [the\ntutorial](docs/a.md#b), [`x`](y.md), [above](#top) and [it](https://e.org).\n![plot](plot.svg)\n"
    page = "see the\ntutorial, `x`, [above](#top) and [it](https://e.org).\n\n"
    assert release.for_package_page(text, "") == page
    assert not relative_links(release.for_package_page(README, ""))


def test_the_version_is_that_of_the_package():
    assert release.version_here() == einops_fast.__version__


def test_notes_are_the_entries_of_the_version():
    assert release.notes_of(CHANGELOG.format(""), "0.2.0") == "### Added\n\n- b\n"
    assert release.notes_of(CHANGELOG.format(""), "0.1.0") == "- a\n"


@pytest.mark.parametrize(
    ("unreleased", "version", "message"),
    [("\n- c\n", "0.2.0", "entries under Unreleased"), ("", "0.3.0", r"no entries under '## 0\.3\.0 – DATE'")],
)
def test_a_changelog_that_is_not_ready_says_what_to_do(unreleased, version, message):
    with pytest.raises(SystemExit, match=message):
        release.notes_of(CHANGELOG.format(unreleased), version)


@pytest.mark.parametrize("script", [release.SMOKE, release.SMOKE_TORCH])
def test_the_programs_for_fresh_environments_run(script, torch):
    # Here Triton may be installed.
    script = script.replace("assert importlib.util", "importlib.util")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pythons_that_are_found_run():
    for python in release.pythons():
        assert subprocess.run([python, "-c", ""]).returncode == 0


PAGE = (ROOT / "docs" / "requirements.md").read_text("utf-8")
ROWS = re.findall(r"^\| (\w+) \| (.*?) \| .*? \| ([\d.b]+) \| ([\d.b]+) \|$", PAGE, re.MULTILINE)
OLDEST = {name.lower(): oldest for name, _, oldest, _ in ROWS}
NEWEST = {name.lower(): newest for name, _, _, newest in ROWS}
CONFIG = ConfigParser()
CONFIG.read(ROOT / "setup.cfg")


def parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def kept_versions(name: str) -> set[str]:
    """The versions of a package that kept results were measured with."""
    results = map(json.loads, (path.read_text("utf-8") for path in (ROOT / "profiles" / "results").glob("*.json")))
    return {result["versions"][name].partition("+")[0] for result in results if name in result["versions"]}


def test_rows_are_read():
    assert len(ROWS) == 9
    assert all(parts(OLDEST[name]) <= parts(NEWEST[name]) for name in OLDEST)


@pytest.mark.parametrize("name", sorted(NEWEST.keys() - {"python", "cupy"}))
def test_newest_is_what_constraints_install(name):
    installed = re.findall(rf"^{name}==([^;\s]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert max(installed, key=parts) == NEWEST[name]


@pytest.mark.parametrize("name", ["torch", "triton", "cupy"])
def test_oldest_of_a_gpu_is_that_of_kept_results(name):
    kept = kept_versions("cupy") | kept_versions("cupy-cuda13x") if name == "cupy" else kept_versions(name)
    assert min(kept, key=parts) == OLDEST[name]


def test_needed_versions_are_those_of_the_package():
    text = "\n".join(value for section in ("options", "options.extras_require") for value in CONFIG[section].values())
    for name, needed, oldest, _ in ROWS:
        bound = re.match(r"([\d.]+) or later", needed)
        if bound and name != "Python":
            assert f"{name.lower()}>={bound[1]}" in text
            assert parts(oldest)[:2] == parts(bound[1])[:2]
    assert CONFIG["options"]["python_requires"] == f">={OLDEST['python']}"
    classified = re.findall(r"Python :: (3\.\d+)", CONFIG["metadata"]["classifiers"])
    assert (classified[0], classified[-1]) == (OLDEST["python"], NEWEST["python"])
