"""Charts as files, SVG and PNG: ``python -m einops_fast.profiles.reporting.plots FILE.json …`` for kept results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from einops_fast.observing.pictures import Picture
from einops_fast.profiles.reporting.charts import Chart
from einops_fast.profiles.reporting.results import Result, read_result
from einops_fast.profiles.studies import STUDIES


def charts_of(result: Result) -> list[Chart]:
    """Return the charts of a result's study; none where they can't be drawn."""
    charts = STUDIES[result.study].charts(result.measured, result.ceilings)
    if charts and find_spec("vl_convert") is None:
        print("no plots: they need vl-convert-python (pip install 'einops_fast[profile]')", file=sys.stderr)
        return []
    return charts


def draw(result: Result, stem: Path) -> list[Path]:
    """Write the charts of a result as files whose names begin with a path."""
    paths = []
    for chart in charts_of(result):
        for kind in ("svg", "png"):
            paths.append(stem.with_name(f"{stem.name}-{chart.name}.{kind}"))
            Picture(chart.spec).save(paths[-1])
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the plots of kept results beside them."""
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles.reporting.plots", description="Draw kept results."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="JSON")
    files = parser.parse_args(arguments).files
    try:
        results = list(map(read_result, files))
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    for file, result in zip(files, results, strict=True):
        name = file.stem
        # A run of chosen dtypes has them in its name, and plots are named after theirs.
        for dtype in dict.fromkeys(row.dtype for row in reversed(result.measured)):
            name = name.removesuffix(f"-{dtype}")
        for path in draw(result, file.with_name(name)):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
