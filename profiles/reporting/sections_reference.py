"""Sections of the reference: every public name with its signature and its docstring, read from the source.

Nothing is imported, so the pages are the same with and without the frameworks that a module needs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from textwrap import dedent

from einops_fast.backends.capabilities import GENERATIONS, PATHS
from einops_fast.profiles.reporting.report import markdown_table
from einops_fast.profiles.reporting.results import ROOT

# The names on each page of ``docs/reference``, by the module to import them from; nothing for its ``__all__``.
PAGES: dict[str, dict[str, str]] = {
    "einops_fast": {
        "einops_fast": "fast_einsum contract_expression ContractExpression explain autotune wait_for_kernels"
        " allow_precision memory_limit profile EinsumError SubscriptsError ShapeError OperandError __version__",
        "einops_fast.explanation": "Explanation",
        "einops_fast.observing.pictures": "Picture",
        "einops_fast.observing.profile_table": "Profile",
        "einops_fast.runtime.plan_cache": "clear_plans",
    },
    "attention": {
        "einops_fast": "attention scaled_dot_product_attention explain_attention attention_backend",
        "einops_fast.attention.explanation": "AttentionExplanation",
        "einops_fast.attention.memory": "score_memory",
        "einops_fast.attention.registry": "register_implementation registered_implementations Implementation",
    },
    "ops": {"einops_fast.ops": ""},
    "nn": {"einops_fast.nn": ""},
    "metrics": {"einops_fast.metrics": ""},
    "patching": {"einops_fast": "patch unpatch patched", "einops_fast.patching.patch": "FUNCTIONS"},
    "compiling": {
        "einops_fast": "compile fusions",
        "einops_fast.compiler.report": "FusionLog Fusion REASONS",
    },
    "backends": {
        "einops_fast": "register_backend",
        "einops_fast.backends": "Backend Operand Target Numerics get_backend registered",
        "einops_fast.backends.ndarray": "NdarrayBackend",
    },
}

_LISTS = {"Args": "Arguments", "Raises": "Raises", "Attributes": "Attributes"}
_TEXTS = ("Returns", "Yields")
_HEADER = re.compile(rf"^({'|'.join([*_LISTS, *_TEXTS, 'Example', 'Examples'])}):\n", re.MULTILINE)
_ROLE = re.compile(r":\w+:`(~?)([\w.]+)`")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): ?(.*)$")
_WIDTH = 100


def names_of(page: str) -> list[tuple[str, str]]:
    """Return the pairs of module and name on a page, in order."""
    return [(module, name) for module, names in PAGES[page].items() for name in names.split() or public_names(module)]


def public_names(module: str) -> tuple[str, ...]:
    """Return the ``__all__`` of a module."""
    node = _definition(module, "__all__")[0]
    assert isinstance(node, ast.Assign)
    return tuple(ast.literal_eval(node.value))


def _page(page: str) -> str:
    """Return every name of a page: a heading, the signature, and the docstring in Markdown."""
    return "\n\n".join(part for module, name in names_of(page) for part in _described(module, name))


def _described(module: str, name: str) -> Iterator[str]:
    node, comment = _definition(module, name)
    yield f"### `{name}`"
    yield f"`from {module} import {name}`"
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
    elif isinstance(node, ast.FunctionDef):
        yield from _function(node)
    else:
        if name != "__version__":  # a release sets it, and no document else
            yield f"```python\n{ast.unparse(node)}\n```"
        yield _markdown(comment)


def _function(node: ast.FunctionDef, bound: bool = False) -> Iterator[str]:
    yield f"```python\n{_signature(node.name, node, bound)}\n```"
    yield _markdown(ast.get_docstring(node) or "")


def _class(node: ast.ClassDef) -> Iterator[str]:
    made = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    if "__init__" in made:
        yield f"```python\n{_signature(node.name, made['__init__'], bound=True)}\n```"
    docstring = ast.get_docstring(node) or ""
    yield _markdown(docstring)
    fields = [f"- `{ast.unparse(each)}`{_dash(comment)}" for each, comment in _fields(node)]
    if fields and "\nAttributes:\n" not in docstring:
        yield "**Attributes**"
        yield "\n".join(fields)
    for name, method in made.items():
        docstring = ast.get_docstring(method) or ""
        is_property = "property" in map(ast.unparse, method.decorator_list)
        if (not name.startswith("_") or name == "__call__") and (docstring or is_property):
            yield f"#### `{node.name}.{name}`"
            if is_property:
                yield f"`{ast.unparse(method.returns)}`{_dash(docstring)}" if method.returns else _markdown(docstring)
            else:
                yield from _function(method, bound=True)


def _fields(node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Return the annotated attributes in the body of a class, and the texts below them."""
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            yield each, _text(after)


def _dash(comment: str) -> str:
    return f": {_inline(' '.join(comment.split()))}" if comment else ""


def _signature(name: str, node: ast.FunctionDef, bound: bool) -> str:
    """Return the call and what it returns, with a line for each argument where one line is too short."""
    arguments = list(_arguments(node.args))[bound:]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in arguments), f"){returned}"])


def _arguments(node: ast.arguments) -> Iterator[str]:
    positional = [*node.posonlyargs, *node.args]
    defaults = [None] * (len(positional) - len(node.defaults)) + list(node.defaults)
    for at, (each, default) in enumerate(zip(positional, defaults, strict=True), 1):
        yield _argument(each, default)
        if at == len(node.posonlyargs):
            yield "/"
    if node.vararg is not None:
        yield f"*{_argument(node.vararg, None)}"
    elif node.kwonlyargs:
        yield "*"
    for each, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
        yield _argument(each, default)
    if node.kwarg is not None and node.kwarg.arg != "unknown":  # which no call may have
        yield f"**{_argument(node.kwarg, None)}"


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(node)
    if default is None:
        return text
    return f"{text}{' = ' if node.annotation is not None else '='}{ast.unparse(default)}"


# From source to definitions


@cache
def _tree(module: str) -> tuple[ast.stmt, ...]:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(source.read_text("utf-8")).body
    # Names that are imported when they are asked for are in blocks for type checkers.
    body = [inner for each in body for inner in (each.body if isinstance(each, ast.If) else (each,))]
    # Overloads are for type checkers; the definition behind them has the docstring.
    return tuple([each for each in body if "overload" not in map(ast.unparse, getattr(each, "decorator_list", ()))])


def _definition(module: str, name: str) -> tuple[ast.stmt, str]:
    """Return where a name is defined, through all modules that import it, and the text below an assignment."""
    body = _tree(module)
    for each, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name:
            return each, ""
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
            return each, _text(after)
        if isinstance(each, ast.ImportFrom) and each.module and name in [alias.name for alias in each.names]:
            return _definition(each.module, name)
    raise LookupError(f"{module} neither defines nor imports {name}")


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


# From docstrings to Markdown


def _markdown(docstring: str) -> str:
    """Return a docstring in Google's style, whose sections come last, as Markdown."""
    text, *sections = _HEADER.split(docstring)
    parts = [_inline(text.strip())] if text.strip() else []
    for name, block in zip(sections[::2], sections[1::2], strict=True):
        body = dedent(block).strip("\n")
        if name in _LISTS:
            parts += [f"**{_LISTS[name]}**", "\n".join(map(_entry, filter(None, body.splitlines())))]
        elif name in _TEXTS:
            parts += [f"**{name}**", _inline(body)]
        else:
            # doctest takes all lines up to an empty one for what an example prints.
            parts.append(f"```python\n{body}\n\n```")
    return "\n\n".join(parts)


def _entry(line: str) -> str:
    entry = _ENTRY.match(line)
    if not entry:
        return f"  {_inline(line.strip())}"
    names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
    return f"- {names}: {_inline(entry[2])}".rstrip()


def _inline(text: str) -> str:
    """Return text with the names that it refers to as code, and with a link where a page has them."""
    return _ROLE.sub(_reference, text.replace("``", "`"))


def _reference(match: re.Match[str]) -> str:
    name = match[2].rpartition(".")[2]
    shown = f"`{name if match[1] else match[2]}`"
    page = _places().get(name)
    return f"[{shown}]({page}.md#{name.lower()})" if page else shown


@cache
def _places() -> dict[str, str]:
    return {name: page for page in PAGES for _, name in names_of(page)}


def _capabilities() -> str:
    """Tell what there is on GPUs of which compute capability, as the code asks for it."""
    names = [".".join(map(str, capability)) for capability in GENERATIONS]
    rows = [(what, *("yes" if span.has(each) else "–" for each in GENERATIONS)) for what, span in PATHS.items()]
    return markdown_table(("on compute capability", *names), rows)


# What makes each section of the reference: by page, and what follows from the source in another way.
REFERENCE: dict[str, Callable[[], str]] = {
    **{page: partial(_page, page) for page in PAGES},
    "capabilities": _capabilities,
}
