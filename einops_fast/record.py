"""`Record`: the base of immutable values with named fields, whose classes are made in microseconds.

A frozen dataclass compiles six methods of its own, which takes a millisecond for each class at import, and sets the
fields of each value one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

R = TypeVar("R", bound="Record")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    _Tuple = object
else:
    _Tuple = tuple

    def dataclass_transform(**options: Any) -> Callable[[type], type]:
        """Leave a class as it is: only type checkers read it."""
        return lambda cls: cls


_new: Callable[..., Any] = tuple.__new__


@dataclass_transform(frozen_default=True)
class Record(_Tuple):
    """An immutable value. Its fields are the annotations of the class, after those of its base, as in a dataclass.

    Two are equal if they are of one class and their fields are.

    >>> class Point(Record):
    ...     x: int
    ...     y: int = 0
    >>> Point(3), Point(3).replace(y=4), Point(3) == Point(x=3, y=0)
    (Point(x=3, y=0), Point(x=3, y=4), True)
    """

    if not TYPE_CHECKING:
        _names = ()
        _defaults = {}
        _last = ()
        _count = 0

        def __init_subclass__(cls):
            own = [name for name in cls.__annotations__ if name not in cls._names]
            cls._defaults = cls._defaults | {name: cls.__dict__[name] for name in own if name in cls.__dict__}
            for at, name in enumerate(own, len(cls._names)):
                setattr(cls, name, property(itemgetter(at)))
            cls._names = (*cls._names, *own)
            cls._count = len(cls._names)
            with_defaults = takewhile(cls._defaults.__contains__, reversed(cls._names))
            cls._last = tuple([cls._defaults[name] for name in with_defaults][::-1])

        def __new__(cls, *values, **named):
            missing = cls._count - len(values)
            if missing:
                if named or not 0 < missing <= len(cls._last):
                    values = cls._completed(values, named)
                else:
                    values += cls._last[-missing:]
            elif named:
                raise TypeError(f"{cls.__name__} has {cls._count} fields, which are given without names")
            return _new(cls, values)

        @classmethod
        def _completed(cls, values, named):
            given = dict(zip(cls._names, values, strict=False))
            wrong = [name for name in named if name not in cls._names or name in given]
            missing = [name for name in cls._names if name not in {*given, *named, *cls._defaults}]
            if wrong or missing or len(values) > cls._count:
                raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._names)}, each of them once")
            given = cls._defaults | given | named
            return [given[name] for name in cls._names]

        def __eq__(self, other):
            return type(self) is type(other) and tuple.__eq__(self, other)

        def __ne__(self, other):
            return not self == other

        __hash__ = tuple.__hash__

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            fields = [f"{name}={value!r}" for name, value in zip(self._names, self, strict=True)]
            return f"{type(self).__qualname__}({', '.join(fields)})"

    def replace(self: R, **changes: Any) -> R:
        """Return the same value but for these fields."""
        fields: Any = self
        return type(self)(**(dict(zip(fields._names, fields, strict=True)) | changes))
