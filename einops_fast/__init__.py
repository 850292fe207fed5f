"""einops_fast: einsum at the speed of the hardware, on whatever framework the arrays come from."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from einops_fast._version import __version__
from einops_fast.attention.attend import attention
from einops_fast.attention.drop_in import scaled_dot_product_attention
from einops_fast.attention.registry import attention_backend
from einops_fast.backends import register_backend, wake_imported
from einops_fast.einsum import fast_einsum
from einops_fast.errors import EinsumError, OperandError, ShapeError, SubscriptsError
from einops_fast.explain import explain
from einops_fast.expression import ContractExpression, contract_expression
from einops_fast.observing.observers import profile
from einops_fast.patching.patch import patch, patched, unpatch
from einops_fast.runtime.limits import memory_limit
from einops_fast.runtime.precision import allow_precision
from einops_fast.runtime.tuning import autotune

if TYPE_CHECKING:  # which can't follow a name through __getattr__
    from einops_fast import metrics as metrics
    from einops_fast import nn as nn
    from einops_fast import ops as ops
    from einops_fast.attention.explanation import explain_attention
    from einops_fast.compiler.front import compile
    from einops_fast.compiler.report import fusions
    from einops_fast.waiting import wait_for_kernels

__all__ = [
    "ContractExpression",
    "EinsumError",
    "OperandError",
    "ShapeError",
    "SubscriptsError",
    "__version__",
    "allow_precision",
    "attention",
    "attention_backend",
    "autotune",
    "compile",
    "contract_expression",
    "explain",
    "explain_attention",
    "fast_einsum",
    "fusions",
    "memory_limit",
    "patch",
    "patched",
    "profile",
    "register_backend",
    "scaled_dot_product_attention",
    "unpatch",
    "wait_for_kernels",
]

einsum = fast_einsum
"""By the name that libraries look for in a module that contracts for them, with those in ``numpy_names``."""

_MODULES = ("metrics", "nn", "ops")

_LATER = {"explain_attention": "attention.explanation", "compile": "compiler.front", "fusions": "compiler.report",
          "wait_for_kernels": "waiting", "tensordot": "numpy_names", "transpose": "numpy_names",
          "stack": "numpy_names"}  # fmt: skip
"""Functions that no program begins with, and where they are."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:  # imported when they are first asked for
        return import_module(f"{__name__}.{name}")
    if name in _LATER:
        return globals().setdefault(name, getattr(import_module(f"{__name__}.{_LATER[name]}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])


wake_imported()

if "EINOPS_FAST_METRICS" in os.environ:
    from einops_fast.metrics import start_from_environment

    start_from_environment()
