"""The list of private names is that of the source, and the installed versions of the libraries have them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optional_mxnet import mxnet_or_skip
from private_uses import uses

from einops_fast.private_names import PRIVATE_NAMES, TESTED, PrivateNames


def listed() -> dict[str, PrivateNames]:
    return {f"{record.owner}.{name}": record for record in PRIVATE_NAMES for name in record.names.split()}


def beginnings(name: str) -> Iterator[str]:
    """The name, and what it is an attribute of."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def entries(use: str) -> set[str]:
    """The listed names that a use is of: names of one spelling in several libraries are all meant."""
    names = listed()
    if any(use == name or name.startswith(f"{use}.") for name in names):
        return {name for name in names if use == name}  # a module on the way to one
    for beginning in beginnings(use):
        found = {name for name in names if name == beginning or name.endswith(f".{beginning}")}
        if found:
            return found
    raise LookupError(use)


def test_no_name_is_listed_twice() -> None:
    assert len(listed()) == sum(len(record.names.split()) for record in PRIVATE_NAMES)


def test_every_private_name_of_the_source_is_listed() -> None:
    missing = {}
    for use, modules in uses().items():
        try:
            entries(use)
        except LookupError:
            missing[use] = sorted(modules)
    assert missing == {}, "add these to einops_fast/private_names.py, with what happens without them"


def test_every_listed_name_is_used_where_it_says() -> None:
    modules: dict[str, set[str]] = {name: set() for name in listed()}
    for use, places in uses().items():
        for name in entries(use):
            modules[name] |= places
    assert [name for name, found in modules.items() if not found] == [], "take these out of the list"
    assert {name: listed()[name].where for name, found in modules.items() if listed()[name].where not in found} == {}


# The versions installed


def attention_node() -> Any:
    import torch

    q, k, v = torch.ones(3, 1, 2, 4, 8, requires_grad=True).unbind()
    # Of all that it returns, autograd knows where the first came from.
    return torch._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0].grad_fn


def nested() -> Any:
    import torch

    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)


def loss_names() -> Any:
    from transformers import PreTrainedModel

    # It is set by whoever has another loss; the property reads it.
    code = PreTrainedModel.loss_function.fget.__code__
    return SimpleNamespace(**{str(name): None for name in (*code.co_names, *code.co_consts)})


def runtime() -> Any:
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    # Without a GPU, none is active; some functions are given to a driver when it is made.
    names = [*dir(CudaDriver), *CudaDriver.__mro__[1].__init__.__code__.co_names]
    without = SimpleNamespace(active=SimpleNamespace(**dict.fromkeys(names)), set_active=driver.set_active)
    return SimpleNamespace(driver=without if hasattr(type(driver), "active") else driver)


def of_einsum() -> Any:
    return SimpleNamespace(**np.einsum.__wrapped__.__globals__)


EXAMPLES: dict[str, Callable[[], Any]] = {
    "numpy.einsum.__globals__": of_einsum,
    "torch._ops.OpOverload": lambda: import_module("torch").ops.aten.add.Tensor,
    "torch.autograd.graph.Node": attention_node,
    "torch.compiler": lambda: import_module("torch").compiler.assume_constant_result(lambda: None),
    "torch.nested._internal.nested_tensor.NestedTensor": nested,
    "torch.nn.Module": lambda: import_module("torch").nn.Module(),
    "transformers.PreTrainedModel": loss_names,
    "triton.runtime": runtime,
}
"""Owners whose attributes only an instance has, or a function's variables."""


def has_cuda(library: Any) -> bool:
    return library.version.cuda is not None


ONLY: dict[str, Callable[[Any], bool]] = {
    "": lambda library: True,
    "NumPy 2": lambda library: library.__version__ >= "2",
    "torch with CUDA": has_cuda,
    "Triton 3.6": lambda library: library.__version__.startswith("3.6."),
}


def has(record: PrivateNames, name: str) -> bool:
    owner = EXAMPLES[record.owner]() if record.owner in EXAMPLES else None
    try:
        if owner is None:
            owner = pkgutil.resolve_name(record.owner)
        for part in name.split("."):
            owner = getattr(owner, part)
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.parametrize("library", sorted({record.owner.partition(".")[0] for record in PRIVATE_NAMES}))
def test_installed_version_has_the_names(library: str) -> None:
    if library == "mxnet":
        mxnet_or_skip()
    if library == "flash_attn" and (find_spec(library) is None or find_spec("flash_attn.cute") is None):
        pytest.skip("needs FlashAttention-4")
    module = pytest.importorskip(library)
    records = [each for each in PRIVATE_NAMES if each.owner.partition(".")[0] == library and ONLY[each.only](module)]
    missing = {
        f"{record.owner}.{name}": record.without
        for record in records
        for name in record.names.split()
        if not has(record, name)
    }
    tested = " and ".join(TESTED.get(library, ("no version",)))
    assert missing == {}, f"{library} {version(library)} lacks these; tested were {tested}"


def test_a_name_that_is_gone_is_told() -> None:
    record = PrivateNames("einops_fast.errors", "EinsumError _gone", "", "", "")
    assert [has(record, name) for name in record.names.split()] == [True, False]
    assert not has(PrivateNames("einops_fast.gone", "", "", "", ""), "_gone")
