"""The list of private names is that of the source, and the installed versions of the libraries have them.

``private_names.csv`` lists the private and undocumented names of other libraries that the source uses, by the module
or class that has them (``owner``): what they are for, what happens ``without`` them, and which builds have them, if
``only`` some do.
"""

import ast
import csv
import functools
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from glob import glob
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip

import einops_fast

TESTED = {
    "cupy": ("14.2",),
    "mxnet": ("2.0.0b1",),
    "numpy": ("1.26", "2.4"),
    "torch": ("2.11", "2.13"),
    "transformers": ("5.17",),
    "triton": ("3.6", "3.7"),
}
"""The versions of each library that all of the list was tested with. Of CuPy, the source uses public names only."""


class PrivateNames(NamedTuple):
    """A row of the list; ``names`` are apart by spaces."""

    owner: str
    names: str
    purpose: str
    without: str
    only: str


with Path(__file__).with_name("private_names.csv").open(encoding="utf-8") as _file:
    PRIVATE_NAMES = [PrivateNames(**row) for row in csv.DictReader(_file)]

# ---- the source

LIBRARIES = ("cupy", "cupy_backends", "mxnet", "numpy", "torch", "transformers", "triton")

UNDOCUMENTED = ("triton.backends.", "triton.compiler.", "triton.knobs.", "triton.runtime.")
"""Modules whose names are as private as those that begin with an underscore."""

_PRIVATE = re.compile(r"_[A-Za-z]\w*")

_MODULE = re.compile(r"sys\.modules(?:\[|\.get\()'([\w.]+)'[\])]")
"""``sys.modules["torch"]`` and ``sys.modules.get("torch")``."""

_NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Documented by Python."""


@functools.cache
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


def _is_private(name: str) -> bool:
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
        parts, base, links = _chain(node)
        if not parts:
            continue
        inner.update(links)
        whole = _resolved(base, bound)
        if whole is not None:
            if whole:
                found.add(".".join((whole, *parts)))
            continue
        first = next((at for at, part in enumerate(parts) if _PRIVATE.fullmatch(part) and part not in own), None)
        if first is not None:
            found.add(".".join(parts[first:]))
    return {name for name in found if name.split(".")[0] not in LIBRARIES or _is_private(name)}


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
            parts, base, _ = _chain(node.value)
            whole = _resolved(base, bound)
            if whole:
                bound[target.id] = ".".join((whole, *parts))
    return bound


def _chain(node: ast.AST) -> tuple[list[str], ast.AST, list[ast.AST]]:
    """Return the attributes at the end of an expression, also by ``getattr``, what they are of, and all its parts."""
    names: list[str] = []
    inner: list[ast.AST] = []
    while True:
        if isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        elif (named := _by_getattr(node)) is not None:
            names.insert(0, named.value)
            inner.append(named)
            node = node.args[0]  # type: ignore[attr-defined]
        else:
            return names, node, inner
        inner.append(node)


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


# ---- the list


@functools.cache
def listed() -> dict[str, PrivateNames]:
    return {f"{record.owner}.{name}": record for record in PRIVATE_NAMES for name in record.names.split()}


def beginnings(name: str) -> Iterator[str]:
    """The name, and what it is an attribute of."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def entries(use: str) -> set[str]:
    """The listed names that a use is of: names of one spelling in several libraries are all meant."""
    names = listed()
    if any(use == name or name.startswith(f"{use}.") for name in names):
        return {name for name in names if use == name}  # a module on the way to one
    for beginning in beginnings(use):
        found = {name for name in names if name == beginning or name.endswith(f".{beginning}")}
        if found:
            return found
    raise LookupError(use)


def test_no_name_is_listed_twice() -> None:
    assert len(listed()) == sum(len(record.names.split()) for record in PRIVATE_NAMES)


def test_every_private_name_of_the_source_is_listed() -> None:
    missing = {}
    for use, modules in uses().items():
        try:
            entries(use)
        except LookupError:
            missing[use] = sorted(modules)
    assert missing == {}, "add these to tests/private_names.csv, with what happens without them"


def test_every_listed_name_is_used() -> None:
    used = set().union(*map(entries, uses()))
    assert listed().keys() - used == set(), "take these out of the list"


# ---- the versions installed


def attention_node() -> Any:
    import torch

    q, k, v = torch.ones(3, 1, 2, 4, 8, requires_grad=True).unbind()
    # Of all that it returns, autograd knows where the first came from.
    return torch._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0].grad_fn


def nested() -> Any:
    import torch

    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)


def traced() -> Any:
    import torch

    return torch.jit.trace(torch.neg, torch.ones(1))


def loss_names() -> Any:
    from transformers import PreTrainedModel

    # It is set by whoever has another loss; the property reads it.
    code = PreTrainedModel.loss_function.fget.__code__
    return SimpleNamespace(**{str(name): None for name in (*code.co_names, *code.co_consts)})


def runtime() -> Any:
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    # Without a GPU, none is active; some functions are given to a driver when it is made.
    names = [*dir(CudaDriver), *CudaDriver.__mro__[1].__init__.__code__.co_names]
    without = SimpleNamespace(active=SimpleNamespace(**dict.fromkeys(names)), set_active=driver.set_active)
    return SimpleNamespace(driver=without if hasattr(type(driver), "active") else driver)


def of_einsum() -> Any:
    return SimpleNamespace(**np.einsum.__wrapped__.__globals__)


EXAMPLES: dict[str, Callable[[], Any]] = {
    "numpy.einsum.__globals__": of_einsum,
    "torch._ops.OpOverload": lambda: import_module("torch").ops.aten.add.Tensor,
    "torch.autograd.graph.Node": attention_node,
    "torch.compiler": lambda: import_module("torch").compiler.assume_constant_result(lambda: None),
    "torch.compiler.disable": lambda: import_module("torch").compiler.disable(lambda: None),
    "torch.jit.trace": traced,
    "torch.nested._internal.nested_tensor.NestedTensor": nested,
    "torch.nn.Module": lambda: import_module("torch").nn.Module(),
    "transformers.PreTrainedModel": loss_names,
    "triton.runtime": runtime,
}
"""Owners whose attributes only an instance has, or a function's variables."""


def has_cuda(library: Any) -> bool:
    return library.version.cuda is not None


ONLY: dict[str, Callable[[Any], bool]] = {
    "": lambda library: True,
    "NumPy 2": lambda library: library.__version__ >= "2",
    "torch with CUDA": has_cuda,
    "Triton 3.6": lambda library: library.__version__.startswith("3.6."),
}


def has(record: PrivateNames, name: str) -> bool:
    owner = EXAMPLES[record.owner]() if record.owner in EXAMPLES else None
    try:
        if owner is None:
            owner = pkgutil.resolve_name(record.owner)
        for part in name.split("."):
            owner = getattr(owner, part)
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.parametrize("library", sorted({record.owner.partition(".")[0] for record in PRIVATE_NAMES}))
def test_installed_version_has_the_names(library: str) -> None:
    if library == "mxnet":
        mxnet_or_skip()
    module = pytest.importorskip(library)
    records = [each for each in PRIVATE_NAMES if each.owner.partition(".")[0] == library and ONLY[each.only](module)]
    missing = {
        f"{record.owner}.{name}": record.without
        for record in records
        for name in record.names.split()
        if not has(record, name)
    }
    tested = " and ".join(TESTED.get(library, ("no version",)))
    assert missing == {}, f"{library} {version(library)} lacks these; tested were {tested}"


def test_a_name_that_is_gone_is_told() -> None:
    record = PrivateNames("einops_fast.errors", "EinsumError _gone", "", "", "")
    assert [has(record, name) for name in record.names.split()] == [True, False]
    assert not has(PrivateNames("einops_fast.gone", "", "", "", ""), "_gone")
