"""The replacement of a framework's einsum in what torch compiles: torch.compile and TorchScript see the native one."""

import pytest
from python_process import run_python

from einops_fast import patched

COMPILE_TORCH = """
import torch, einops_fast

seen = []
def backend(module, _):
    seen.extend(node.target for node in module.graph.nodes if node.op == "call_function")
    return module.forward

def compiled():
    seen.clear()
    def product(a, b):
        return torch.einsum("ij,jk->ki", a, b) + 1
    result = torch.compile(product, fullgraph=True, backend=backend)(a, b)
    torch.testing.assert_close(result, (a @ b).T + 1)
    assert seen[0] is native, seen

native = torch.einsum
a, b = torch.rand(2, 3), torch.rand(3, 4)
with einops_fast.patched("torch"):
    torch.einsum("ij,jk->ki", a, b)
    compiled()
torch._dynamo.reset()
compiled()
"""

COMPILE_NUMPY = """
from contextlib import nullcontext

import numpy, torch, einops_fast

a, b = numpy.ones((2, 3)), numpy.ones((3, 4))
def product(a, b):
    return numpy.einsum("ij,jk->ki", a, b) + 1

for around in (einops_fast.patched("numpy"), nullcontext(), einops_fast.patched("numpy")):
    with around:
        torch.compiler.reset()
        result = torch.compile(product, fullgraph=True, backend="eager")(a, b)
        numpy.testing.assert_allclose(result, (a @ b).T + 1)
"""


# In processes of their own: what torch.compile knows of torch and of NumPy, it looks up once.
@pytest.mark.parametrize("program", [COMPILE_NUMPY, COMPILE_TORCH + COMPILE_NUMPY], ids=["NumPy", "torch, NumPy"])
def test_torch_compile_traces_the_native_function(torch, program):
    run_python("-c", program)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torch_jit_knows_the_replacement(torch):
    def product(a, b):
        return torch.einsum("ij,jk->ki", a, b)

    a, b = torch.rand(2, 3), torch.rand(3, 4)
    with patched("torch"):
        torch.einsum("ij,jk->ki", a, b)
        graph = torch.jit.trace(product, (a, b)).graph
    assert "aten::einsum" in str(graph)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torch_script_compiles_the_replacement(torch, tmp_path):
    # TorchScript reads source files.
    (tmp_path / "scripted.py").write_text(
        "import torch, einops_fast\n"
        "def product(a: torch.Tensor, b: torch.Tensor):\n"
        "    return torch.einsum('ij,jk->ki', [a, b])\n"
        "a, b = torch.rand(2, 3), torch.rand(3, 4)\n"
        "with einops_fast.patched('torch'):\n"
        "    assert torch.allclose(torch.jit.script(product)(a, b), (a @ b).T)\n"
        "assert torch.allclose(torch.jit.script(product)(a, b), (a @ b).T)\n"
    )
    run_python(tmp_path / "scripted.py")
