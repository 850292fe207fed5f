"""A module that does its work in another way: the same object, of a class derived from its own.

So everything else about it stays as it is: its name and its place, parameters, state, hooks, what ``isinstance`` says;
and the forward of its own class is there for calls that the new one doesn't take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn

from einops_fast.errors import EinsumError

__all__ = ["ALREADY", "Replacement", "original_class", "put", "take_back"]

ALREADY = "is replaced already"
"""Why a module isn't replaced once more."""


class Replacement(nn.Module):
    """What a replaced module is, beside what it was. Derived classes have the new ``forward``.

    Attributes:
        does: in words, for the report.
        original: the class that the module had.
    """

    does: ClassVar[str]
    original: ClassVar[type[nn.Module]]

    if TYPE_CHECKING:  # it has the attributes of the class that it was of

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def unfit(cls, module: nn.Module) -> str | None:
        """Why this module can't be replaced, in a few words; ``None`` if it can."""
        return None

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        """What else the class derived from ``original`` has."""
        return {}

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class isn't to be found by its name: it is made again.
        made = type(self)
        reduced: Any = super().__reduce_ex__(max(2, protocol))
        return (_empty, (made.__bases__[0], made.original), *reduced[2:])


_classes: dict[tuple[type[Replacement], type[nn.Module]], type[Replacement]] = {}


def _derived(replacement: type[Replacement], original: type[nn.Module]) -> type[Replacement]:
    found = _classes.get((replacement, original))
    if found is None:
        members = {"original": original, "__module__": replacement.__module__, **replacement.members(original)}
        made = type(f"Fast{original.__name__}", (replacement, original), members)
        found = _classes.setdefault((replacement, original), made)
    return found


def _empty(replacement: type[Replacement], original: type[nn.Module]) -> Any:
    made = _derived(replacement, original)
    return made.__new__(made)


def put(replacement: type[Replacement], module: nn.Module) -> None:
    """Replace a module."""
    module.__class__ = _derived(replacement, type(module))


def take_back(module: nn.Module, name: str) -> bool:
    """Give a module its own class again; whether it had another.

    Raises:
        EinsumError: something else has changed its class since.
    """
    if not isinstance(module, Replacement):
        return False
    if "original" not in type(module).__dict__:
        raise EinsumError(f"{name or 'the model'} got another class since, {type(module).__name__}: undo that first")
    cast(Any, module).__class__ = module.original
    return True


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module has, or had before it was replaced."""
    return module.original if isinstance(module, Replacement) else type(module)
