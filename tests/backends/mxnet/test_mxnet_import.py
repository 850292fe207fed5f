"""How the MXNet backend imports MXNet."""

import pytest
from optional_mxnet import mxnet_or_skip
from python_process import run_python

mxnet_or_skip()

IMPORT = """
import sys, warnings
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
import numpy
from einops_fast.backends.mxnet.importing import import_mxnet
warnings.simplefilter("error")
def names():
    return {name: value for name, value in vars(numpy).items() if not isinstance(value, ModuleType)}
before = names()
"""

IMPORTED = {
    "leaves NumPy as it was, and functions work that read names which it has removed": """
mxnet = import_mxnet()
after = names()
assert after.keys() == before.keys()
assert all(after[name] is value for name, value in before.items())
assert import_mxnet() is mxnet is sys.modules["mxnet"]
warnings.simplefilter("ignore")
a = mxnet.np.array([[1.0, 2.0], [3.0, 4.0]])
assert a[a > 2].shape == (2,)
a[mxnet.np.array([True, False], dtype="bool")] = 0
assert mxnet.np.pad(a, ((1, 1), (0, 0))).shape == (4, 2)
assert mxnet.np.isnan(a).dtype == bool
assert mxnet.np.array(numpy.True_)
assert numpy.prod(a).item() == 0 and mxnet.np.msort(a).shape == (2, 2)
mxnet.test_utils.assert_almost_equal(a, numpy.array([[0, 0], [3, 4]], "float32"))
""",
    "leaves NumPy as it was when it fails": """
sys.modules["mxnet.numpy"] = None
try:
    import_mxnet()
except ImportError:
    pass
else:
    raise AssertionError("imported without mxnet.numpy")
assert names().keys() == before.keys()
""",
    "by threads at once gives all of them the whole module": """
with ThreadPoolExecutor(8) as executor:
    modules = list(executor.map(lambda _: import_mxnet(), range(8)))
assert all(module.np.ones(2).shape == (2,) for module in modules)
""",
}


@pytest.mark.parametrize("script", IMPORTED.values(), ids=IMPORTED)
def test_import(script: str) -> None:
    run_python("-c", IMPORT + script)
