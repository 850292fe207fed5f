"""Plans and fusions as pictures: every array has its place, bytes and copies are told, notebooks show them."""

import json
import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from einops_fast import explain, explain_attention
from einops_fast.compiler.report import Fusion, FusionLog

drawing = pytest.mark.skipif(find_spec("vl_convert") is None, reason="vl-convert-python isn't installed")


def explained(equation, *shapes):
    return explain(equation, *map(np.ones, shapes))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ab,bc,cd,de,ef->af", [(4, 4)] * 5),
        ("a,a,a,a->", [(4,)] * 4),
        ("ij->ij", [(2, 3)]),
        (",->", [(), ()]),
        ("...i,ij->...j", [(5, 2, 3), (3, 4)]),
    ],
)
def test_a_tree_has_a_box_for_each_array_and_none_overlap(equation, shapes):
    plan = explained(equation, *shapes)
    lines, boxes, words = (layer["data"]["values"] for layer in plan.plot().spec["layer"])
    assert boxes is words
    assert len(boxes) == len(shapes) + len(plan.steps)
    assert len(lines) == sum(len(step.reads) for step in plan.steps)
    # What is read lies to the left.
    assert all(line["x"] < line["x2"] for line in lines)
    for at, box in enumerate(boxes):
        for other in boxes[:at]:
            assert (
                box["x"] >= other["x2"] or box["x2"] <= other["x"] or box["y"] >= other["y2"] or box["y2"] <= other["y"]
            )
    assert [box["lines"][-1] for box in boxes[len(shapes) :]] == [
        f"moves {moved}, copies {copied}"
        for moved, copied in re.findall(r"([\d.]+ \w*B) +([\d.]+ \w*B) +\S+ \S*s$", str(plan), re.M)
    ][: len(plan.steps)]


def test_a_tree_of_a_thousand_operands_is_drawn():
    names = [chr(0x100 + at) for at in range(1200)]
    plan = explain("".join(f"{name}," for name in names)[:-1] + "->", *[np.ones(1)] * 1200, optimize=False)
    boxes = plan.plot().spec["layer"][1]["data"]["values"]
    assert len({(box["x"], box["y"]) for box in boxes}) == len(boxes)


LOG = FusionLog(
    [Fusion("attention", "model.py:3", "b h i d", saved=1234567), Fusion("softmax", "model.py:9", "b i j")],
    [Fusion("attention", "model.py:3", reason="dtype", at="aten.mul")],
)


def attended(**options):
    return explain_attention(*[np.ones((2, 5, 4, 8), "float32")] * 3, layout="bshd", **options)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}])
def test_implementations_of_attention_have_a_line_each(options):
    explained = attended(**options)
    values = explained.plot().spec["layer"][0]["data"]["values"]
    assert [each["label"].split(". ")[1] for each in values] == [*explained.answers]
    for each, (name, answer) in zip(values, explained.answers.items(), strict=True):
        assert each["value"] == (explained.predicted[name] if answer == "can" else 0)
        assert each["told"].startswith("chosen, predicted") == (name == explained.implementation)
        assert answer == "can" or each["told"] == answer


@drawing
@pytest.mark.parametrize(
    "shown",
    [explained("ij,jk->ik", (2, 3), (3, 4)), attended(), LOG, FusionLog()],
    ids=["plan", "attention", "log", "none"],
)
def test_notebooks_show_pictures_and_words(shown, tmp_path):
    html = shown._repr_html_()
    assert html.startswith('<img alt="" src="data:image/svg+xml;base64,')
    assert "<pre>" in html
    picture = shown.plot()
    for kind in ("svg", "png", "json"):
        picture.save(tmp_path / f"a.{kind}")
    assert (tmp_path / "a.svg").read_text("utf-8") == picture.svg()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == json.loads(json.dumps(picture.spec))


def test_without_vl_convert_there_are_words_and_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr("einops_fast.observing.pictures.find_spec", lambda name: None)
    assert LOG._repr_html_().startswith("<pre>")
    assert "&gt;" in explained("ij->i", (2, 3))._repr_html_()
    with pytest.raises(ImportError, match=r"pip install 'einops_fast\[profile\]'"):
        LOG.plot().svg()
