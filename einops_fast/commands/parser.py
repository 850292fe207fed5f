"""A parser of arguments whose errors are one line, with what may have been meant."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from einops_fast.vocabulary import closest


class Parser(argparse.ArgumentParser):
    """A parser of one command, or of all."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.flags: list[str] = []
        self.collects = ""  # a list of positional arguments that may also stand behind options
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Add an argument, as in argparse."""
        self.flags += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """End the process, with one line."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return what was understood; nothing else may be given."""
        found, others = super().parse_known_args(args, namespace)
        wrong = [each for each in others if each.startswith("-") or not self.collects]
        if wrong and wrong[0].startswith("-"):
            name = wrong[0].partition("=")[0]
            self.error(f"no such option: {name}{closest(name, self.flags)}")
        if wrong:
            self.error(f"one argument too many: {wrong[0]}")
        if others:
            getattr(found, self.collects).extend(others)
        return found, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = None if action.choices is None else [str(each) for each in action.choices]
        if known is not None and str(value) not in known:
            told = f"{value!r} isn't one of {', '.join(known)}{closest(str(value), known)}"
            raise argparse.ArgumentError(action, told)


def numbers(text: str) -> tuple[int, ...]:
    """Return a shape, or strides."""
    inner = re.sub(r"^\((.*?),?\)$", r"\1", text.strip())
    try:
        return tuple(int(size) for size in inner.removesuffix(",").replace("x", ",").split(",")) if inner else ()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write 64,100, 64x100 or ()") from None
