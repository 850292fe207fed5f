"""Which folders import which, and that no files import each other in a circle."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import einops_fast

ROOT = Path(einops_fast.__file__).parents[1]

ROOMS = {
    "einops_fast": "face",
    "einops_fast._version": "words",
    "einops_fast.annotations": "words",
    "einops_fast.dtypes": "words",
    "einops_fast.errors": "words",
    "einops_fast.record": "words",
    "einops_fast.vocabulary": "words",
    "einops_fast.planning": "planning",
    "einops_fast.runtime": "runtime",
    "einops_fast.observing": "observing",
    "einops_fast.patching": "patching",
    "einops_fast.compiler": "compiler",
    "einops_fast.attention": "attention",
    "einops_fast.ops": "ops",
    "einops_fast.nn": "nn",
    "einops_fast.tune": "tune",
    "einops_fast.commands": "commands",
    "einops_fast.profiles": "profiles",
    "einops_fast.backends": "backends",
    "einops_fast.backends.cupy": "backends.cupy",
    "einops_fast.backends.mxnet": "backends.mxnet",
    "einops_fast.backends.torch": "backends.torch",
    "einops_fast.backends.torch.attention": "backends.torch.attention",
    "einops_fast.backends.torch.einsum": "backends.torch.einsum",
    "einops_fast.backends.torch.ops": "backends.torch.ops",
    "einops_fast.backends.torch.sharding": "backends.torch.sharding",
    "einops_fast.backends.triton": "backends.triton",
    "einops_fast.backends.triton.device": "backends.triton.device",
    "einops_fast.backends.triton.launching": "backends.triton.launching",
    "einops_fast.backends.triton.contraction": "backends.triton.contraction",
    "einops_fast.backends.triton.rows": "backends.triton.rows",
    "einops_fast.backends.triton.attention": "backends.triton.attention",
}
"""A folder by the first part of its modules' names; the longest that fits counts."""

IMPORTED = {
    "face": "words planning runtime observing patching attention backends tune commands",
    "commands": "face words runtime observing patching compiler attention backends tune",
    "planning": "words observing",
    "runtime": "face words planning observing patching backends",
    "observing": "face words planning runtime",
    "patching": "face words planning runtime observing backends",
    "compiler": "words planning observing attention patching backends.torch",
    "attention": "face words planning runtime observing backends",
    "ops": "face words planning runtime observing attention backends",
    "nn": "face words planning observing attention ops backends.torch",
    "tune": (
        "face words planning runtime observing attention commands backends backends.torch backends.torch.attention "
        "backends.torch.ops backends.triton.launching backends.triton.contraction"
    ),
    "profiles": "face words runtime observing attention ops commands backends",
    "backends": "face words planning runtime patching",
    "backends.cupy": "planning runtime backends",
    "backends.mxnet": "words planning patching attention backends",
    "backends.torch": "words planning runtime observing patching attention backends backends.torch.einsum",
    "backends.torch.attention": (
        "words planning runtime attention backends backends.torch backends.triton.launching backends.triton.attention"
    ),
    "backends.torch.einsum": "face words planning runtime observing backends backends.torch",
    "backends.torch.ops": "face words planning runtime attention backends backends.torch",
    "backends.torch.sharding": "face words planning runtime attention ops backends backends.torch backends.torch.ops",
    "backends.triton.device": "backends.triton.launching",
    "backends.triton.launching": "planning runtime backends backends.triton.device",
    "backends.triton.contraction": (
        "planning runtime backends backends.triton.device backends.triton.launching backends.triton.rows"
    ),
    "backends.triton.rows": "planning runtime backends backends.triton.device backends.triton.launching",
    "backends.triton.attention": (
        "planning attention backends backends.triton.device backends.triton.launching backends.triton.contraction"
    ),
}
"""What the files of a folder import when they are imported themselves. A new direction is a decision: add it here."""

IN_FUNCTIONS = {
    "face": "profiles",
    "commands": "backends.torch",
    "runtime": "backends.torch backends.torch.einsum",
    "patching": "attention compiler",
    "compiler": "backends.torch.ops",
    "attention": "backends.mxnet backends.torch backends.torch.attention backends.torch.sharding",
    "ops": "backends.torch.ops backends.torch.sharding",
    "profiles": "planning nn backends.mxnet",
    "backends.cupy": "backends.triton.contraction",
    "backends.torch": "face backends.torch.sharding backends.triton.contraction backends.triton.launching",
    "backends.torch.einsum": "backends.triton.contraction",
    "backends.torch.ops": "backends.triton.device backends.triton.contraction backends.triton.rows",
}
"""What they import later, inside functions, and nowhere else."""


def _modules() -> dict[str, Path]:
    found = {}
    for top in ("einops_fast", "backends", "profiles"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if any(part.is_symlink() for part in path.parents):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if top == "einops_fast" else ("einops_fast", *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _room(module: str) -> str:
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(ROOMS[name] for name in names if name in ROOMS)


def _named(node: ast.AST) -> Iterator[str]:
    """Modules of the package that a statement imports, or a call of ``import_module``."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            # A function that the package exports may have the name of a module.
            submodule = f"{node.module}.{alias.name}"
            yield submodule if submodule in MODULES and submodule not in EXPORTED else str(node.module)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_module":
        yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


EXPORTED = {f"einops_fast.{name}" for name in einops_fast.__all__}


@functools.cache
def _imports(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """At once and in functions; what only type checkers read isn't counted."""
    at_once: set[str] = set()
    later: set[str] = set()

    def visit(node: ast.AST, names: set[str]) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = later
        names.update(name for name in _named(node) if name in MODULES)
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(ast.parse(MODULES[module].read_text("utf-8")), at_once)
    return frozenset(at_once), frozenset(later)


def _directions() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    at_once: dict[str, set[str]] = defaultdict(set)
    later: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        room = _room(module)
        for found, names in zip((at_once, later), _imports(module), strict=True):
            found[room] |= {_room(name) for name in names} - {room}
    for room, found in later.items():
        found -= at_once[room]
    return {room: found for room, found in at_once.items() if found}, {r: f for r, f in later.items() if f}


def _table(directions: dict[str, str]) -> dict[str, set[str]]:
    return {room: set(rooms.split()) for room, rooms in directions.items()}


def test_folders_import_what_they_may() -> None:
    """Equal, not fewer: a direction that nobody takes any more leaves the table."""
    assert len(MODULES) > 100
    assert _directions() == (_table(IMPORTED), _table(IN_FUNCTIONS))


def test_no_files_import_each_other_in_a_circle() -> None:
    done: set[str] = set()

    def follow(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " imports ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in sorted(_imports(module)[0]):
                if name != module:
                    follow(name, (*way, module))
            done.add(module)

    for module in MODULES:
        follow(module, ())


def test_tests_import_no_tests() -> None:
    """What they share is in ``support``."""
    importing = re.compile(r"^ *(?:from|import) \S*\btest_\w+", re.MULTILINE)
    paths = sorted(Path(__file__).parent.rglob("*.py"))
    assert [(path.name, found) for path in paths for found in importing.findall(path.read_text("utf-8"))] == []
