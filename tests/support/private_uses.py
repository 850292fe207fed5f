"""Find the private names of other libraries that the package's source uses."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from glob import glob
from pathlib import Path

import einops_fast

LIBRARIES = ("cupy", "cupy_backends", "flash_attn", "mxnet", "numpy", "torch", "transformers", "triton")

UNDOCUMENTED = ("triton.backends.", "triton.compiler.", "triton.knobs.", "triton.runtime.")
"""Modules whose names are as private as those that begin with an underscore."""

_PRIVATE = re.compile(r"_[A-Za-z]\w*")

_MODULE = re.compile(r"sys\.modules(?:\[|\.get\()'([\w.]+)'[\])]")
"""``sys.modules["torch"]`` and ``sys.modules.get("torch")``."""

_NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Documented by Python."""


@cache
def uses() -> dict[str, set[str]]:
    """Return the modules that use each private name of another library.

    A name is given from the library on where the source says whose it is (``torch._C._is_tracing``), and else from its
    first private part on (``_forward_hooks.values``). Names that the package itself gives to anything are left out.
    """
    folder = Path(einops_fast.__file__).parent
    paths = sorted(glob("**/*.py", root_dir=folder, recursive=True))  # follows links, unlike Path.rglob
    nodes = {path: list(ast.walk(ast.parse((folder / path).read_text("utf-8")))) for path in paths}
    own = _NAMED_TUPLE.union(*map(_defined, nodes.values()))
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        module = ".".join(("einops_fast", *Path(path).with_suffix("").parts)).removesuffix(".__init__")
        for name in _used(nodes[path], own):
            found[name].add(module)
    return found


def is_private(name: str) -> bool:
    """Whether a name from the library on is private or undocumented."""
    return any(map(_PRIVATE.fullmatch, name.split("."))) or f"{name}.".startswith(UNDOCUMENTED)


def _defined(nodes: list[ast.AST]) -> set[str]:
    """Return the names that a module gives to functions, classes, variables and attributes of ``self`` or ``cls``."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            names.add(node.attr)
    return names


def _is_own(base: ast.AST) -> bool:
    return isinstance(base, ast.Name) and base.id in ("self", "cls")


def _used(nodes: list[ast.AST], own: set[str]) -> set[str]:
    bound = _bound(nodes)
    found: set[str] = set(filter(None, bound.values()))
    inner: set[ast.AST] = set()  # parts of a longer chain, and texts that are parts of others
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            inner.update(node.values)
        if node in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # getattr and tables name attributes by texts.
            if _PRIVATE.fullmatch(node.value) and node.value not in own:
                found.add(node.value)
            continue
        parts, base = _chain(node)
        if not parts:
            continue
        inner.update(_links(node))
        whole = _resolved(base, bound)
        if whole is not None:
            if whole:
                found.add(".".join((whole, *parts)))
            continue
        first = next((at for at, part in enumerate(parts) if _PRIVATE.fullmatch(part) and part not in own), None)
        if first is not None:
            found.add(".".join(parts[first:]))
    return {name for name in found if name.split(".")[0] not in LIBRARIES or is_private(name)}


def _bound(nodes: list[ast.AST]) -> dict[str, str]:
    """Return the full names of what a module imports or binds to a variable; ``''`` for other libraries' names."""
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.partition(".")[0]
                name = each.name if each.asname else top
                bound[each.asname or top] = name if top in LIBRARIES else ""
        elif isinstance(node, ast.ImportFrom):
            ours = node.level or (node.module or "").partition(".")[0] not in LIBRARIES
            for each in node.names:
                bound[each.asname or each.name] = "" if ours else f"{node.module}.{each.name}"
    for node in nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and node.value is not None:
            parts, base = _chain(node.value)
            whole = _resolved(base, bound)
            if whole:
                bound[target.id] = ".".join((whole, *parts))
    return bound


def _chain(node: ast.AST) -> tuple[list[str], ast.AST]:
    """Return the attributes at the end of an expression, also those that ``getattr`` takes, and what they are of."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        elif (named := _by_getattr(node)) is not None:
            parts.insert(0, named.value)
            node = node.args[0]  # type: ignore[attr-defined]
        else:
            return parts, node


def _links(node: ast.AST) -> list[ast.AST]:
    links: list[ast.AST] = []
    while True:
        if isinstance(node, ast.Attribute):
            node = node.value
        elif (named := _by_getattr(node)) is not None:
            links.append(named)
            node = node.args[0]  # type: ignore[attr-defined]
        else:
            return links
        links.append(node)


def _by_getattr(node: ast.AST) -> ast.Constant | None:
    """Return the text in ``getattr(object, "name")``; ``None`` for another expression."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return None
    named = node.args[1]
    return named if isinstance(named, ast.Constant) and isinstance(named.value, str) else None


def _resolved(base: ast.AST, bound: dict[str, str]) -> str | None:
    """Return what an expression is of, from the library on; ``''`` for other libraries, ``None`` if nobody can tell."""
    if isinstance(base, ast.Name):
        return bound.get(base.id)
    if not isinstance(base, ast.Call | ast.Subscript):
        return None
    match = _MODULE.fullmatch(ast.unparse(base))
    return match[1] if match and match[1].partition(".")[0] in LIBRARIES else None
