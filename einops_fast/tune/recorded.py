"""The calls of a recorded run, and which of them can be tuned for."""

from __future__ import annotations

import os
from pathlib import Path

from einops_fast import metrics
from einops_fast.dtypes import FLOATS
from einops_fast.errors import EinsumError
from einops_fast.observing.calls import Called
from einops_fast.observing.tables import read_table


def read_calls(path: str | os.PathLike[str]) -> list[Called]:
    """Return the calls in a table that metrics have written, or in all of a folder, each once."""
    path = Path(path)
    try:
        rows = metrics.read(path)["calls"] if path.is_dir() else read_table(path)
    except OSError as error:
        raise EinsumError(f"the table of calls can't be read: {error}") from None
    if not rows:
        raise EinsumError(f"there are no calls in {path}; record some with {metrics.VARIABLE}=calls:DIR")
    return list(dict.fromkeys(map(Called.from_row, rows)))


def why_not(call: Called, anywhere: bool) -> str | None:
    """Return why there is nothing to tune for a call, in a few words; ``None`` if there is.

    Args:
        call: which one.
        anywhere: whether calls count that didn't run on a GPU.
    """
    if call.backend != "torch":
        return f"its arrays are of {call.backend}, and only torch's calls are made again"
    if not (anywhere or call.device.startswith("cuda")):
        return f"it ran on {call.device}, where nothing is compiled"
    dtypes = {each.dtype for each in call.arrays if each is not None}
    if not dtypes & {*FLOATS}:
        return "it has no floating-point numbers"
    if call.kind == "attention" and not dtypes <= {*FLOATS, "bool"}:
        return "its lengths or pages can't be made up"
    return None


def in_words(error: BaseException) -> str:
    """Return what went wrong, in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
