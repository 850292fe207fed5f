"""The sdist builds a wheel, and the wheel works where nothing but its two requirements is installed."""

import glob
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import opt_einsum
import pytest

pytest.importorskip("build")

ROOT = Path(__file__).parents[1]


def run(*command, cwd):
    # The caller's path may lead to the checkout.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def python_files(package):
    return set(glob.glob("**/*.py", root_dir=package, recursive=True))  # follows links, unlike Path.rglob


class Installed:
    """The wheel, alone in a new environment."""

    def __init__(self, tmp):
        self.cwd = tmp
        # A build leaves files behind in the tree it builds from.
        self.source = source = tmp / "source"
        litter = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, source, symlinks=True, ignore=litter)
        # Makes the sdist, unpacks it and makes the wheel from that.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp / "dist", cwd=source)
        (self.sdist,) = (tmp / "dist").glob("*.tar.gz")
        (wheel,) = (tmp / "dist").glob("*.whl")

        env = tmp / "env"
        venv.create(env, symlinks=True)
        (self.site,) = env.glob("lib/python*/site-packages")
        self.bin = env / "bin"
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=tmp)
        self.names = {path.name for path in self.site.iterdir()}

        # Its two requirements are lent by this environment: nothing is downloaded.
        ours = Path(numpy.__file__).parents[1]
        for lent in (*ours.glob("numpy*"), Path(opt_einsum.__file__).parent):
            (self.site / lent.name).symlink_to(lent)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("install"))


def test_installs_one_package_and_nothing_else(installed):
    info = {name for name in installed.names if name.endswith(".dist-info")}
    assert len(info) == 1
    assert installed.names - info == {"einops_fast"}
    assert (installed.bin / "einops-fast").is_file()


def test_has_every_module_of_the_checkout(installed):
    package = installed.site / "einops_fast"
    assert python_files(package) == python_files(ROOT / "einops_fast")
    assert {"backends/__init__.py", "profiles/__init__.py"} <= python_files(package)
    assert (package / "py.typed").is_file()
    # What the page of results is made of.
    pages = {path.name for path in (ROOT / "einops_fast" / "profiles" / "reporting" / "page").iterdir()}
    assert {path.name for path in (package / "profiles" / "reporting" / "page").iterdir()} == pages != set()
    assert not any(path.is_symlink() for path in package.rglob("*"))


def test_editable_install_is_a_path(installed):
    """Type checkers follow paths, and no hooks of imports."""
    script = "from setuptools.build_meta import build_editable; build_editable('.')"
    run(sys.executable, "-c", script, cwd=installed.source)
    (wheel,) = installed.source.glob("einops_fast*.whl")
    with zipfile.ZipFile(wheel) as files:
        (path,) = [name for name in files.namelist() if "dist-info" not in name]
        assert path.endswith(".pth")
        assert files.read(path).decode().strip() == str(installed.source)


def test_works_with_its_two_requirements_alone(installed):
    script = (
        "import numpy as np, einops_fast\n"
        "a = np.arange(6.0).reshape(2, 3)\n"
        "assert np.array_equal(einops_fast.fast_einsum('ij,jk->ik', a, a.T), a @ a.T)\n"
        "print(einops_fast.__file__)"
    )
    used = run(installed.bin / "python", "-c", script, cwd=installed.cwd)
    assert Path(used).is_relative_to(installed.site)


def test_sdist_holds_the_files_that_its_tests_read(installed):
    run(sys.executable, "-m", "tarfile", "--extract", installed.sdist, installed.cwd, cwd=installed.cwd)
    unpacked = installed.cwd / installed.sdist.name.removesuffix(".tar.gz")
    script = "tests/profiles/test_profiles.py::test_script_says_what_it_cannot_run"
    files = ("tests/profiles/test_profile_documents.py", script)
    assert " passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, cwd=unpacked)
