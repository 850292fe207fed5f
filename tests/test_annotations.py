"""Type checkers know what calls give, and find mistakes in a user's program."""

import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest

from einops_fast import attention
from einops_fast.annotations import AttentionOptions, Framework, Layout
from einops_fast.attention.pattern import read_layout
from einops_fast.patching.patch import FUNCTIONS

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[1]

RIGHT = """
import numpy as np
import einops_fast
import torch
from einops_fast import attention, autotune, contract_expression, fast_einsum, ops, patch
from einops_fast import allow_precision, scaled_dot_product_attention

x, a = torch.ones(2, 3, 4, 5), np.ones((3, 3))
half: torch.Tensor = fast_einsum('bnid,bnjd->bnij', x, x)
product: np.ndarray = fast_einsum('ij,jk->ik', a, [[1.0], [2.0], [3.0]], order='C', casting='same_kind')
by_labels: np.ndarray = fast_einsum(a, [0, 1], a, [1, 2], [0, 2], optimize=[(0, 1)])
of_lists = fast_einsum('i,i->', [1, 2], [3, 4]) + fast_einsum([1, 2], [0], []) + fast_einsum('->', 3.0)
heads: torch.Tensor = fast_einsum('b i (h d), b j (h d) -> b h i j', x[0], x[0], h=2, autotune='wait', precision='tf32')
out: torch.Tensor = attention('b h i d, b h j d, b h j e -> b h i e', x, x, x, causal='bottom_right', window=(3, None))
both: tuple[torch.Tensor, torch.Tensor] = attention(x, x, x, layout='bhsd', return_lse=True)
one: np.ndarray = attention(a[None, None], a[None, None], a[None, None], layout='bshd')
same: torch.Tensor = scaled_dot_product_attention(x, x, x, is_causal=True)
weights: torch.Tensor = ops.softmax(x, dim='j', pattern='b n i j', causal=True)
normed, summed = ops.dropout_add_layer_norm(ops.rms_norm(x), ops.layer_norm(x))
loss: torch.Tensor = ops.cross_entropy(x[0, 0], torch.zeros(3).long(), reduction='sum')
made: np.ndarray = contract_expression('ij,jk->ik', (3, 3), (3, 3), order='F')(a, a)
with autotune('never'), allow_precision('tf32x3'):
    patch('numpy', 'torch.sdpa')
def half_of(parameter: torch.nn.Parameter, x: torch.Tensor) -> torch.Tensor:
    return fast_einsum('i,i->i', parameter, x) / 2
summed.sum(), loss.backward(), normed.mean(), of_lists + 1
"""

WRONG = {
    "fast_einsum('ij,jk->ik', a, a, order='row')": "fast_einsum",
    "fast_einsum('ij,jk->ik', a, a).requires_grad_()": "requires_grad_",
    "fast_einsum('ij,jk->ik', x, x).astype('f')": "astype",
    "fast_einsum('ij,jk->ik', x, x, autotune='fast')": "fast_einsum",
    "attention('b i d, b j d, b j e -> b i e', x, x, x, causal='bottom')": "attention",
    "attention(x, x, x, layout='bdsh3')": "attention",
    "attention(x, x, x, layout='bhsd', dropout=0.1)": "attention",
    "attention(x, x, x, layout='bhsd', return_lse=True).sum()": "sum",
    "allow_precision('bf16')": "allow_precision",
    "autotune('fastest')": "autotune",
    "patch('tensorflow')": "patch",
    "ops.softmax(x, causal='last')": "softmax",
    "ops.softmax(x, axis=-1)": "axis",
    "scaled_dot_product_attention(x, x, x, causal=True)": "causal",
    "contract_expression('ij->i', (2, 2))(x).astype('f')": "astype",
    "ops.cross_entropy(x, x, reduction='average')": "cross_entropy",
    "ops.linear(x, x).numpyy()": "numpyy",
    "einops_fast.ops.softmax(x, causal='last')": "softmax",
    "einops_fast.nn.Softmax(axis=1)": "axis",
    "contract_expression('ij->i', (2, 2), order='X')": "contract_expression",
    "torch.exp(fast_einsum('ij,jk->ik', x, a))": "exp",
    "turned: np.ndarray = fast_einsum('ij->ji', x)": "fast_einsum",
}
"""Lines with a mistake, and what of them the message names."""


def test_words_are_those_that_calls_take() -> None:
    assert {*get_args(Framework)} == {*FUNCTIONS}
    for layout in get_args(Layout):
        assert read_layout(layout).pattern
    given = [each.name for each in signature(attention).parameters.values() if each.kind is each.KEYWORD_ONLY]
    assert sorted([*AttentionOptions.__annotations__, "return_lse"]) == sorted(given)


@pytest.fixture(scope="module")
def told(tmp_path_factory: Any) -> dict[int, str]:
    """Messages of the checker about a program, by line: what is right, then what is wrong."""
    folder = tmp_path_factory.mktemp("program")
    path = folder / "program.py"
    path.write_text(RIGHT + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", ROOT / ".mypy_cache", path]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True, check=False
    )
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"program\.py:(\d+): error: (.*)", line)
        if match is not None:
            found[int(match[1])] = match[2]
    assert found, done.stdout
    return found


def test_what_is_right(told: dict[int, str]) -> None:
    first_wrong = RIGHT.count("\n") + 1
    assert {line: message for line, message in told.items() if line < first_wrong} == {}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong(told: dict[int, str], line: str) -> None:
    message = told[RIGHT.count("\n") + 1 + [*WRONG].index(line)]
    assert WRONG[line] in message
