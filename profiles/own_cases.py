"""Cases from a file: equations and shapes of the user's own.

The file is JSON, or YAML where PyYAML is installed: a list of cases (or ``{"cases": [...]}``), each like this::

    {"name": "scores", "equation": "batch i head d, batch j head d -> batch head i j",
     "shapes": [[8, 512, 12, 64], [8, 512, 12, 64]]}

A ``name`` may be left out; an equation may be spelled in any way that :func:`einops_fast.fast_einsum` takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from einops_fast.profiles.cases import Case


def read_cases(path: Path) -> tuple[Case, ...]:
    """Return the cases of a file, or raise ValueError, which says which case is wrong, and why."""
    try:
        text = path.read_text("utf-8")
        found = import_module("yaml").safe_load(text) if path.suffix.lower() in (".yaml", ".yml") else json.loads(text)
    except ImportError:
        raise ValueError(f"{path}: YAML needs PyYAML (pip install pyyaml); JSON does without") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except Exception as error:  # of PyYAML, whose errors have no class here
        raise ValueError(f"{path} is no {path.suffix.lstrip('.').upper() or 'JSON'}: {error}") from None
    listed = found.get("cases") if isinstance(found, Mapping) else found
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{path}: this is no list of cases")
    cases: dict[str, Case] = {}
    for at, given in enumerate(listed):
        try:
            case = _case(given)
        except ValueError as error:
            name = given.get("name") if isinstance(given, Mapping) else None
            raise ValueError(f"{path}, case {name or at}: {error}") from None
        if case.name in cases:
            raise ValueError(f"{path}: two cases are called {case.name}")
        cases[case.name] = case
    return tuple(cases.values())


def _case(given: Any) -> Case:
    # Imported here because NumPy, which this imports, reads the number of threads then.
    from einops_fast.planning.notation import bind_sizes, parse

    if not isinstance(given, Mapping) or not {"equation", "shapes"} <= given.keys() <= {"name", "equation", "shapes"}:
        raise ValueError("a case has an equation, shapes and, if you like, a name, and nothing else")
    spelled, shapes = given["equation"], given["shapes"]
    if not isinstance(spelled, str):
        raise ValueError(f"the equation is text, not {spelled!r}")
    if not isinstance(shapes, list) or not all(isinstance(shape, list) for shape in shapes):
        raise ValueError(f"shapes is a list of lists of numbers, one for each operand, not {shapes!r}")
    for at, shape in enumerate(shapes):
        if any(type(size) is not int or size < 1 for size in shape):
            raise ValueError(f"operand {at} has shape {shape}: sizes are whole numbers from 1 on")
    subscripts = parse(spelled, tuple(map(len, shapes)))
    sizes = bind_sizes(subscripts, shapes)
    for at, (term, shape) in enumerate(zip(subscripts.inputs, shapes, strict=True)):
        for label, size in zip(term, shape, strict=True):
            if size != sizes[label]:
                axis = subscripts.spelling(label)
                raise ValueError(
                    f"operand {at} has size {size} along {axis!r}, another has {sizes[label]}: give both alike"
                )
    # Letters, which every framework's own einsum takes.
    return Case(str(given.get("name") or spelled), subscripts.equation, tuple(map(tuple, shapes)), fixed=True)
