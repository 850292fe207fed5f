"""Whether the code that a replacement stands for is still what torch and transformers came with.

Programs set ``forward`` on classes, and put functions of their own in the place of those that it reads
(``apply_rotary_pos_emb``, ``F.scaled_dot_product_attention``). So the names in the compiled code are looked up, as a
call would do it, and each function must come from the file, and have the name, that it is looked up by. Calls compare
these look-ups again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dis import Instruction, get_instructions
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch


class _LookUp(NamedTuple):
    """What a name in the code stands for: an attribute of a module or a class."""

    holder: Any
    name: str
    value: Any


# By class, or by function. Kept for good, as the classes are; a patch that is undone makes the same values true again.
_look_ups: dict[Any, tuple[_LookUp, ...]] = {}

# Packages whose code is known; ours is in the place of theirs while it is patched in.
_KNOWN, _OURS = ("torch", "transformers"), "einops_fast"

_COMPARED = (ModuleType, bool, int, float, str, type(None))


def foreign_code(kind: Any) -> str | None:
    """Name what isn't torch's or transformers' own among the code that a class or a function runs; ``None`` if all is.

    Args:
        kind: a class of a module, of which ``forward`` is meant, or a function of a Python module.
    """
    if kind in _look_ups and unchanged(kind):
        return None
    start = (kind, "forward") if isinstance(kind, type) else (sys.modules[kind.__module__], kind.__name__)
    found: dict[tuple[Any, str], Any] = {}
    pending = [start]
    while pending:
        holder, name = pending.pop()
        value = getattr(holder, name)
        if (holder, name) in found:
            continue
        if not _is_native(holder, name, value):
            return f"{holder.__name__}.{name} isn't the one that it came with"
        found[holder, name] = value
        inner = _unwrapped(value)[-1]
        if isinstance(inner, FunctionType) and inner.__module__ == kind.__module__:
            pending += _read_by(inner, holder)
    # What is neither called nor a plain value (a logger) changes nothing, and compilers may not follow a comparison.
    matter = {key: value for key, value in found.items() if callable(value) or isinstance(value, _COMPARED)}
    _look_ups[kind] = tuple([_LookUp(*key, value) for key, value in matter.items()])
    return None


def trust(kind: type) -> None:
    """Have a class of a program's own count as known, for as long as its ``forward`` is the one that it has now."""
    if foreign_code(kind) is not None:
        _look_ups[kind] = (_LookUp(kind, "forward", kind.forward),)  # type: ignore[attr-defined]


def unchanged(kind: Any) -> bool:
    """Whether the code of a class or a function is known, and every name in it still stands for the same."""
    look_ups = _look_ups.get(kind)
    if look_ups is None:
        return not torch.compiler.is_compiling() and foreign_code(kind) is None
    for holder, name, value in look_ups:
        now = getattr(holder, name, None)
        if now is not value and not _same_but_for_ours(now, value):
            return False
    return True


def _same_but_for_ours(now: Any, before: Any) -> bool:
    """Whether a function and the one that was there before differ only in that one is patched by us."""
    now, before = ([each for each in _unwrapped(function) if not _is_of(each, _OURS)] for function in (now, before))
    return bool(now == before)


_same_but_for_ours._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _read_by(function: FunctionType, holder: Any) -> Iterator[tuple[Any, str]]:
    """Where a function's code looks names up: its globals, modules among these (``nn.functional``), its class."""
    home, current = sys.modules[function.__module__], None
    for step in _instructions(function.__code__):
        name = step.argval
        if step.opname == "LOAD_GLOBAL" and name in vars(home):
            yield home, name
            current = vars(home)[name]
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(current, ModuleType):
            inside = getattr(current, name)
            if isinstance(inside, ModuleType) or callable(inside):
                yield current, name
            current = inside
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and current == "self" and isinstance(holder, type):
            if isinstance(getattr(holder, name, None), FunctionType):
                yield holder, name
            current = None
        elif step.opname.startswith("LOAD_FAST") and "self" in (name, name[-1:][0]):
            current = "self"
        elif step.opname != "PUSH_NULL":
            current = None


def _instructions(code: CodeType) -> Iterator[Instruction]:
    yield from get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _is_native(holder: Any, name: str, value: Any) -> bool:
    if isinstance(value, ModuleType):
        return sys.modules.get(value.__name__) is value
    if isinstance(value, type):
        return value.__name__ == name and value.__module__.partition(".")[0] in (*_KNOWN, *sys.stdlib_module_names)
    if not isinstance(value, FunctionType):
        compiled = isinstance(value, BuiltinFunctionType) or type(value).__module__.partition(".")[0] in _KNOWN
        return compiled or not callable(value)
    *wrappers, function = (each for each in _unwrapped(value) if not _is_of(each, _OURS))
    if not all(_is_of(each, "transformers") for each in wrappers):
        return False
    home, qualified = holder.__name__, name
    if isinstance(holder, type):
        owner = next(each for each in holder.__mro__ if name in vars(each))
        home, qualified = owner.__module__, f"{owner.__qualname__}.{name}"
    module = function.__module__
    # transformers' models have functions of the same names, and don't share them.
    known = module == home or not module.startswith("transformers.models")
    code = function.__code__
    file = getattr(sys.modules.get(module), "__file__", None)
    return (
        known
        and module.partition(".")[0] in (*_KNOWN, *sys.stdlib_module_names)
        and (function.__qualname__, code.co_name, code.co_filename) == (qualified, name, file)
    )


def _unwrapped(value: Any) -> list[Any]:
    """A function and those that it wraps, the innermost last."""
    chain = [value]
    while isinstance(chain[-1], FunctionType) and hasattr(chain[-1], "__wrapped__"):
        chain.append(chain[-1].__wrapped__)
    return chain


def _is_of(function: Any, package: str) -> bool:
    """Whether a function's code is in the files of a package."""
    top = getattr(sys.modules.get(package), "__file__", None)
    code = getattr(function, "__code__", None)
    return top is not None and code is not None and Path(top).parent in Path(code.co_filename).parents
