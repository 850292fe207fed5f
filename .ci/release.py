"""Build, check and tag a release, without publishing it: ``make release``.

From the commit that is checked out, in folders that are thrown away: an sdist and a wheel, the sdist's own tests, the
wheel in fresh environments (with NumPy alone on each Python that is here, and with torch but no Triton), the page of
the package, the notes of the release from CHANGELOG.md. What passes is in ``dist/``, and the commit has a tag.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = "3.10", "3.11", "3.12", "3.13"

SMOKE = """
import sys
import numpy as np
import einops_fast
from einops_fast import attention, explain, fast_einsum, ops, patched
q = np.random.default_rng(0).standard_normal((2, 5, 3, 4))
np.testing.assert_allclose(fast_einsum("b i h d, b j h d -> b h i j", q, q), np.einsum("bihd,bjhd->bhij", q, q))
assert attention(q, q, q, layout="bshd").shape == ops.softmax(q).shape == q.shape
with patched("numpy"):
    assert np.einsum("ij,jk", np.ones((2, 3)), np.ones((3, 4))).shape == (2, 4)
assert not {"torch", "triton"} & sys.modules.keys()
print(sys.version.split()[0], "NumPy", np.__version__)
"""

SMOKE_TORCH = """
import importlib.util
import torch
from einops_fast import attention, fast_einsum, nn
assert importlib.util.find_spec("triton") is None
q = torch.randn(2, 5, 3, 4, requires_grad=True)
fast_einsum("b i h d, b j h d -> b h i j", q, q).sum().backward()
assert q.grad is not None and attention(q, q, q, layout="bshd").shape == q.shape
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
assert nn.optimize(model).replaced and model(torch.ones(1, 4)).shape == (1, 4)
print("torch", torch.__version__, "without Triton")
"""


def for_package_page(readme: str, home: str) -> str:
    """Return a README whose relative links lead to files below `home`; without one, links become plain text."""

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        if re.match(r"\w+:|#", target):
            return match[0]
        if home:
            return f"{image}[{text}]({home.rstrip('/')}/{target})"
        return "" if image else text

    return re.sub(r"(!?)\[((?:[^\[\]]|\n)*)\]\(([^)\s]+)\)", link, readme)


def notes_of(changelog: str, version: str) -> str:
    """Return the entries of a version; raise `SystemExit` where they aren't ready for a release."""
    sections = {
        title.split()[0]: body.strip()
        for title, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    }
    if sections.get("Unreleased"):
        raise SystemExit(f"CHANGELOG.md has entries under Unreleased: put them under '## {version} – DATE'")
    if not sections.get(version):
        raise SystemExit(
            f"CHANGELOG.md has no entries under '## {version} – DATE', the version of einops_fast/_version.py"
        )
    return sections[version] + "\n"


def version_here() -> str:
    """Return the version of the checkout, which isn't imported."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "einops_fast" / "_version.py").read_text("utf-8"), re.M)
    if found is None:
        raise SystemExit("einops_fast/_version.py has no line '__version__ = \"…\"'")
    return found[1]


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command without the checkout on Python's path; return what it prints."""
    print("$", *(str(word).strip().partition("\n")[0] for word in command), flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{command[0]} failed with exit status {done.returncode}")
    return done.stdout.strip()


def build(source: Path, home: str, dist: Path) -> tuple[Path, Path]:
    """Build an sdist of a copy of the checkout, and a wheel of that sdist."""
    run("git", "archive", "--output", source.parent / "source.tar", "HEAD")
    run("tar", "-x", "-f", source.parent / "source.tar", cwd=source)
    readme, config = source / "README.md", source / "setup.cfg"
    readme.write_text(for_package_page(readme.read_text("utf-8"), home), "utf-8")
    if home:
        config.write_text(config.read_text("utf-8").replace("[metadata]\n", f"[metadata]\nurl = {home}\n"), "utf-8")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, cwd=source)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    if find_spec("twine"):
        print(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel))
    else:
        print("twine isn't installed: the page of the package isn't checked")
    return sdist, wheel


def pythons() -> list[str]:
    """Return the Pythons that are here: on the path, and those that pyenv has."""
    here = []
    for version in PYTHONS:
        found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        runs = [each for each in found if each and not subprocess.run([each, "-c", ""], capture_output=True).returncode]
        here += map(str, runs[:1])
    return here


def check_wheel(wheel: Path, folder: Path) -> None:
    """Import and use the wheel in fresh environments."""
    for number, python in enumerate(pythons()):
        run(python, "-m", "venv", folder / str(number))
        inside = folder / str(number) / "bin" / "python"
        run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        print(run(inside, "-c", SMOKE, cwd=folder))
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        print("torch isn't installed: the wheel isn't checked with it")
        return
    # This environment lends all that it has but Triton and the checkout.
    venv.create(folder / "torch", with_pip=False, symlinks=True)
    (site,) = (folder / "torch").glob("lib/python*/site-packages")
    for lent in Path(spec.origin).parents[1].iterdir():
        if not re.match(r"_*(triton|editable___einops_fast|einops_fast)|.*\.pth$", lent.name, re.I):
            (site / lent.name).symlink_to(lent)
    shutil.unpack_archive(wheel, site, "zip")
    print(run(folder / "torch" / "bin" / "python", "-c", SMOKE_TORCH, cwd=folder))


def main() -> None:
    """Make a release of the version of einops_fast/_version.py."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--home", default="", help="where the files of this version can be read, for README's links")
    parser.add_argument("--tests", default="-n auto", help="what pytest is given in the sdist; all tests if left out")
    parser.add_argument("--dry-run", action="store_true", help="neither tag nor ask for entries in CHANGELOG.md")
    options = parser.parse_args()
    version = version_here()
    notes = "" if options.dry_run else notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if not options.dry_run and run("git", "status", "--porcelain"):
        raise SystemExit("the checkout has changes: commit them, a release is of a commit")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        sdist, wheel = build(folder / "source", options.home, folder / "dist")
        check_wheel(wheel, folder)
        with tarfile.open(sdist) as files:
            files.extractall(folder / "sdist")
        (unpacked,) = (folder / "sdist").iterdir()
        print(
            run(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                *shlex.split(options.tests),
                cwd=unpacked,
            )
        )
        (ROOT / "dist").mkdir(exist_ok=True)
        for made in (sdist, wheel):
            shutil.copy(made, ROOT / "dist")
    (ROOT / "dist" / f"notes-{version}.md").write_text(notes, "utf-8")
    if not options.dry_run:
        run("git", "tag", "--annotate", f"v{version}", "--cleanup", "verbatim", "--file", f"dist/notes-{version}.md")
    print(f"dist/ has einops_fast {version}; nothing was published")


if __name__ == "__main__":
    main()
