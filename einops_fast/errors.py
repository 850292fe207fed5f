"""The errors that a caller sees: one class per kind of mistake, each naming what is wrong and where."""

from __future__ import annotations

__all__ = ["EinsumError", "OperandError", "ShapeError", "SubscriptsError", "out_of_memory", "point_at"]


class EinsumError(ValueError, RuntimeError):
    """Base of every error raised for bad input.

    NumPy and MXNet report a bad einsum call as ``ValueError``, torch as ``RuntimeError``: code written
    for either keeps working, because this is both.
    """


class SubscriptsError(EinsumError):
    """The equation itself is malformed: no operand could make it right."""


class ShapeError(EinsumError):
    """The equation is well formed, but an axis has two different sizes or an operand the wrong rank."""


class OperandError(EinsumError, TypeError):
    """The operands can't be used together or at all: two frameworks, two devices, an unknown type."""


_NO_MEMORY = "not enough memory", "out of memory", "allocate memory", "memory allocation failed"


def out_of_memory(error: Exception) -> Exception:
    """Return an error that says that memory ran out, without what its traceback keeps; raise any other."""
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return error.with_traceback(None)
    raise error


_WIDTH = 88  # of the part of a long equation that an error shows


def point_at(problem: str, equation: str, span: tuple[int, int] | None = None) -> str:
    """``problem``, then the equation, with carets under its characters ``span``."""
    if not equation.strip():
        return problem
    shown = "".join(" " if character.isspace() else character for character in equation)
    start, end = span or (0, 0)
    if len(shown) > _WIDTH:
        cut = max(0, min(start - _WIDTH // 2, len(shown) - _WIDTH))
        before, after = "… " if cut else "", " …" if cut + _WIDTH < len(shown) else ""
        shown = before + shown[cut : cut + _WIDTH] + after
        start, end = start - cut + len(before), min(end - cut, _WIDTH) + len(before)
    lines = [problem, f"  {shown}"]
    if span is not None:
        lines.append("  " + " " * start + "^" * max(1, end - start))
    return "\n".join(line.rstrip() for line in lines)
