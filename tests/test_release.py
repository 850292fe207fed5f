"""What `make release` makes of README and CHANGELOG; tests/test_install.py builds and installs."""

import importlib.util
import re
import subprocess
import sys

import pytest
from python_process import ROOT

import einops_fast
from einops_fast.profiles.reporting.documents import SECTIONS

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
