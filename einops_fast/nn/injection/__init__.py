"""Fused modules in the place of a model's own: see :func:`einops_fast.nn.optimize`."""

from einops_fast.nn.injection.optimize import optimize, restore
from einops_fast.nn.injection.policy import register_policy
from einops_fast.nn.injection.report import OptimizeReport, Row

__all__ = ["OptimizeReport", "Row", "optimize", "register_policy", "restore"]
