"""The reference says what docstrings say, of every public name."""

import re

import pytest

from einops_fast.profiles.reporting import sections_reference
from einops_fast.profiles.reporting.sections_reference import PAGES, REFERENCE, names_of, public_names

SAMPLE = '''
__all__ = ["LIMIT", "Pair", "double"]

LIMIT = 3
"""The most that :func:`double` takes."""


def double(value: int, /, *rest: int, times: int = 2, **options: object) -> int:
    """Multiply ``value``, see :func:`~sample_of_reference.Pair` and :mod:`einops_fast`.

    Args:
        value: a number, which
            goes on in another line.
        *rest: more numbers.

    Returns:
        Twice the number.

    Example:
        >>> double(2)
        4
    """


class Pair:
    """Two numbers."""

    left: int
    """The first: of two
    lines."""
    _hidden: int

    @property
    def total(self) -> int:
        """The sum."""

    def undocumented(self) -> None: ...
'''

PARTS = (
    "### `LIMIT`\n\n`from sample_of_reference import LIMIT`\n\n```python\nLIMIT = 3\n```\n\n"
    "The most that [`double`](sample.md#double) takes.",
    "### `Pair`\n\n`from sample_of_reference import Pair`\n\nTwo numbers.\n\n**Attributes**\n\n"
    "- `left: int`: The first: of two lines.\n\n#### `Pair.total`\n\n`int`: The sum.",
    "### `double`\n\n`from sample_of_reference import double`\n\n```python\n"
    "double(value: int, /, *rest: int, times: int = 2, **options: object) -> int\n```\n\n"
    "Multiply `value`, see [`Pair`](sample.md#pair) and `einops_fast`.\n\n**Arguments**\n\n"
    "- `value`: a number, which\n  goes on in another line.\n- `*rest`: more numbers.\n\n**Returns**\n\n"
    "Twice the number.\n\n```python\n>>> double(2)\n4\n\n```",
)


def test_page_has_signatures_and_docstrings_as_markdown(tmp_path, monkeypatch):
    (tmp_path / "sample_of_reference.py").write_text(SAMPLE)
    (tmp_path / "einops_fast").symlink_to(sections_reference.ROOT / "einops_fast")
    monkeypatch.setattr(sections_reference, "ROOT", tmp_path)
    monkeypatch.setitem(PAGES, "sample", {"sample_of_reference": ""})
    sections_reference._places.cache_clear()
    try:
        assert sections_reference._page("sample") == "\n\n".join(PARTS)
    finally:
        sections_reference._places.cache_clear()


@pytest.mark.parametrize(
    "module", ["einops_fast", "einops_fast.attention", "einops_fast.metrics", "einops_fast.nn", "einops_fast.ops"]
)
def test_every_public_name_is_on_a_page(module):
    listed = {name for page in PAGES for _, name in names_of(page)}
    assert set(public_names(module)) <= listed


@pytest.mark.parametrize("page", PAGES)
def test_every_name_has_its_docstring(page):
    text = REFERENCE[page]()
    for module, name in names_of(page):
        assert f"### `{name}`\n\n`from {module} import {name}`" in text
    assert not re.search(r":(func|class|mod|data|meth):`|``", text.replace("```", ""))
