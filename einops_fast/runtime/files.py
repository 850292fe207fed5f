"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text in place of what is there: whoever reads meanwhile, or after a failure, finds one of both."""
    # In the same folder, as os.replace is atomic within one file system only.
    temporary = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
