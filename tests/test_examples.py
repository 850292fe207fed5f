"""Every script of examples/ runs at its tiny size, and what it prints is right."""

import importlib.util
import json
import re

import pytest
from python_process import ROOT, run_python

EXAMPLES = ROOT / "examples"

# What a script needs beside NumPy, how many losses fall, and how many differences from plain code it prints
SCRIPTS = {
    "bert_finetune": (["torch", "transformers"], 6, 2),
    "dask_contraction": (["dask"], 0, 1),
    "gluon_block": (["mxnet"], 0, 4),
    "kv_cache_server": (["torch"], 0, 0),
    "lora": (["torch"], 6, 1),
    "mp2_energy": ([], 0, 2),
    "nanogpt": (["torch"], 6, 1),
    "profile_program": ([], 0, 0),
    "tensor_network": (["torch"], 0, 4),
    "triangle": (["torch"], 0, 8),
}


def numbers(pattern: str, text: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, text)]


def run_tiny(name: str) -> str:
    needs, losses, differences = SCRIPTS[name]
    for module in needs:
        # Found, not imported: MXNet itself imports after a patch only.
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} isn't installed")
    text = run_python(EXAMPLES / f"{name}.py", "--tiny").stdout
    fallen = numbers(r"loss ([\d.]+)", text)
    apart = numbers(r"(?:difference|of gradients) ([\d.e+-]+)", text)
    assert len(fallen) == losses, text
    assert not losses or fallen[-1] < 0.75 * fallen[0], text
    assert len(apart) == differences, text
    assert not differences or max(apart) < 1e-4, text
    return text


def test_every_script_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()


@pytest.mark.parametrize("name", ["lora", "nanogpt", "triangle", "gluon_block"])
def test_losses_fall_and_results_are_those_of_plain_code(name):
    run_tiny(name)


def test_fine_tuning_beats_a_constant_answer():
    text = run_tiny("bert_finetune")
    [replaced], [restored] = numbers(r"replaced (\d+)", text), numbers(r"restored (\d+)", text)
    assert replaced == restored > 5
    [accuracy], [constant] = numbers(r"accuracy ([\d.]+)", text), numbers(r"same answer ([\d.]+)", text)
    assert accuracy > constant + 0.05


def test_blocks_of_dask_are_contracted_by_us():
    assert "einops_fast contracted 16 pairs of blocks" in run_tiny("dask_contraction")


def test_a_server_gives_each_request_what_it_gets_alone():
    text = run_tiny("kv_cache_server")
    assert "8 of 8 requests" in text
    [(words, steps)] = re.findall(r"(\d+) words in (\d+) steps", text)
    assert int(steps) < int(words)


def test_energy_within_a_limit_takes_no_more_memory():
    text = run_tiny("mp2_energy")
    assert min(numbers(r"with ([\d.]+) MB", text)) > 1.5
    assert max(numbers(r"pieces, ([\d.]+) MB", text)) < 1.5
    assert min(numbers(r"(\d+) pieces", text)) > 1


def test_an_order_takes_fewer_operations_than_terms():
    [(ordered, terms)] = re.findall(r"(\d+) operations; without an order (\d+)", run_tiny("tensor_network"))
    assert int(ordered) < int(terms) / 100


def test_a_profile_tells_a_copy_and_its_advice_avoids_it():
    text = run_tiny("profile_program")
    assert re.findall(r"kept as (\w+): (.*)", text) == [("kjl", "a copy"), ("jkl", "no copy")]
    assert len(set(re.findall(r"total (\S+)", text))) == 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_keep_no_output(path, tmp_path):
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"]] == []
    script = tmp_path / "cells.py"
    script.write_text("\n".join("".join(cell["source"]) for cell in cells), "utf-8")
    assert "assert" in script.read_text("utf-8")
    run_python(script)


def test_readme_lists_every_program():
    programs = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]
    listed = re.findall(r"^\| \[\w+\]\((.+?)\)", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert listed == sorted(path.name for path in programs)


def test_scripts_have_less_than_80_lines():
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert [name for name, length in lengths.items() if length >= 80] == []
