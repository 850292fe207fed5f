"""The documents for contributors: their form, and that the files they name exist."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

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
