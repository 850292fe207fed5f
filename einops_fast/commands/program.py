"""Run a program in this process as ``python`` itself would: a script, a module, code, or what the standard input says.

The program's main module stays that of the process: threads, exit handlers and pickles may outlive the program.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pkgutil import get_importer
from types import CodeType, ModuleType
from typing import Any

from einops_fast.errors import EinsumError

_FLAGS = "-m", "-c"


def split(arguments: Sequence[str], with_value: str) -> tuple[list[str], list[str]]:
    """Return a command with its options, and the program with its arguments, which begins with a flag or the script.

    Args:
        arguments: all of them; the first is the command.
        with_value: the one option of the command that takes the next argument.
    """
    at = 1
    while at < len(arguments) and arguments[at][:1] == "-" and arguments[at] not in ("-", "--"):
        if arguments[at][:2] in _FLAGS:
            break
        at += 2 if arguments[at] == with_value else 1
    program = list(arguments[at:])
    if program[:1] == ["--"]:
        del program[0]
    if program and program[0][:2] in _FLAGS and program[0] not in _FLAGS:
        program[:1] = program[0][:2], program[0][2:]
    return list(arguments[:at]), program


def prepared(program: Sequence[str]) -> Callable[[], None]:
    """Read a program, and return what runs it.

    Args:
        program: what ``python`` is given: ``-m`` and a module, ``-c`` and code, ``-`` or a path, and arguments.

    Raises:
        EinsumError, ImportError, OSError: there is no such file, or it can't be read.
    """
    head, *rest = program
    if head == "-m":
        return partial(_run_module, rest[0], [head, *rest[1:]], os.getcwd())
    if head in ("-", "-c"):
        code = rest.pop(0) if head == "-c" else sys.stdin.buffer.read()
        name = "<string>" if head == "-c" else "<stdin>"
        return partial(_run_code, compile(code, name, "exec", dont_inherit=True), [head, *rest], "")
    path = os.path.abspath(head)
    if not os.path.exists(path):
        raise EinsumError(f"there is no file {head!r}")
    if get_importer(path) is not None:  # a folder, or an archive
        return partial(_run_module, "__main__", program, path)
    kind = SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader
    loader: Any = kind("__main__", path)
    # No script's code is cached.
    source = kind is SourceFileLoader
    code = loader.source_to_code(loader.get_data(path), path) if source else loader.get_code("__main__")
    names = {"__file__": path, "__cached__": None, "__loader__": loader}
    return partial(_run_code, code, program, os.path.dirname(os.path.realpath(path)), names)


def _run_module(name: str, argv: Sequence[str], folder: str) -> None:
    _main_module(argv, folder, always=name == "__main__")
    run_as_main: Callable[..., Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
    run_as_main(name, name != "__main__")


def _run_code(code: CodeType, argv: Sequence[str], folder: str, names: dict[str, Any] | None = None) -> None:
    main_module = _main_module(argv, folder)
    vars(main_module).update(names or {})
    exec(code, vars(main_module))


def _main_module(argv: Sequence[str], folder: str, always: bool = False) -> ModuleType:
    """Make the main module, and have it see its arguments and find what is in its folder."""
    sys.argv[:] = argv
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = folder  # in place of what found this module
    elif always:
        sys.path.insert(0, folder)
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    return main_module
