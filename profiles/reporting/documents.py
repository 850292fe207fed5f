"""The made parts of README and docs, from kept results and from docstrings: ``make report``.

A document has a pair of comments around each, ``<!-- results:NAME -->`` and ``<!-- /results:NAME -->``, or
``reference`` in place of ``results``; what stands between them is made here, and a test says when it isn't up to date.

``python -m einops_fast.profiles.reporting.documents`` writes them anew, draws the plots and tables of the kept results,
and puts all results on one page, ``profiles/results/report.html``.
"""

from __future__ import annotations

import re

from einops_fast.profiles.reporting import plots
from einops_fast.profiles.reporting.html_report import html_page
from einops_fast.profiles.reporting.report import markdown
from einops_fast.profiles.reporting.results import RESULTS, ROOT, Result, read_result
from einops_fast.profiles.reporting.sections import SECTIONS as RESULT_SECTIONS
from einops_fast.profiles.reporting.sections import kept_files
from einops_fast.profiles.reporting.sections_reference import REFERENCE
from einops_fast.profiles.studies import STUDIES

# Where sections may stand.
DOCUMENTS = (ROOT / "README.md", RESULTS / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
DRAWN = ("contraction-nvidia-h200",)  # The results whose plots are kept beside them

# What makes each section, by the name that stands in its comments.
SECTIONS = {
    **{f"results:{name}": make for name, make in RESULT_SECTIONS.items()},
    **{f"reference:{name}": make for name, make in REFERENCE.items()},
}

_MARKED = re.compile(r"(<!-- ((?:results|reference):[\w-]+) -->\n)(.*?)(<!-- /\2 -->)", re.DOTALL)


def updated(text: str) -> str:
    """Return a document with its sections made anew."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{SECTIONS[match[2]]().strip()}\n\n{match[4]}", text)


def tables_of(result: Result) -> str:
    """Return the file with the tables of a result."""
    return markdown(result, STUDIES[result.study].tables(result.measured))


def main() -> None:
    """Make plots, sections and the page anew."""
    drawn = [*(RESULTS / f"{name}.json" for name in DRAWN), *kept_files("attention-*"), *kept_files("ops-*")]
    plots.main(list(map(str, drawn)))
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        if updated(text) != text:
            path.write_text(updated(text), encoding="utf-8")
            print(f"wrote {path}")
    page = RESULTS / "report.html"
    results = []
    for path in kept_files("*"):
        results.append(read_result(path))
        path.with_suffix(".md").write_text(tables_of(results[-1]), encoding="utf-8")
    page.write_text(html_page(results), encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main()
