"""docs/requirements.md names the versions that are tested: those that are installed here, and those of kept results."""

import json
import re
from configparser import ConfigParser

import pytest
from python_process import ROOT

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
