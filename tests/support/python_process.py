"""Programs in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent


def run_python(
    *arguments: Any, cwd: Path = ROOT, status: int = 0, path: Any = (), **variables: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with the checkout on its path, and check how it exits.

    Args:
        arguments: of the interpreter.
        cwd: the folder to run it in.
        status: the exit status that it has to have.
        path: folders to find modules in before all others.
        variables: of the environment; ``None`` takes one away.
    """
    folders = [*path, ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))} | variables
    environment = {name: str(value) for name, value in given.items() if value is not None}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, done.stderr[-3000:]
    return done
