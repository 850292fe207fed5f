"""Modules of torch made of :func:`einops_fast.attention` and :mod:`einops_fast.ops`. Importing this imports torch."""

from einops_fast.backends.torch.flops import register_flop_formulas
from einops_fast.backends.torch.operators import register_operators
from einops_fast.nn.attention_interface import register_attention
from einops_fast.nn.bert import BertSelfAttention
from einops_fast.nn.causal import CausalSelfAttention
from einops_fast.nn.einsum import Einsum
from einops_fast.nn.flash_registry import register_flash_attention
from einops_fast.nn.gpt import Conv1D, GPTAttention
from einops_fast.nn.injection import OptimizeReport, optimize, register_policy, restore
from einops_fast.nn.layers import (
    CrossEntropyLoss,
    DropoutAddLayerNorm,
    FusedDropoutBias,
    FusedLinear,
    LayerNorm,
    LogSoftmax,
    RMSNorm,
    Softmax,
)
from einops_fast.nn.multihead import MultiHeadAttention
from einops_fast.nn.self_attention import QKVSelfAttention
from einops_fast.vocabulary import respell

__all__ = [
    "BertSelfAttention",
    "CausalSelfAttention",
    "Conv1D",
    "CrossEntropyLoss",
    "DropoutAddLayerNorm",
    "Einsum",
    "FusedDropoutBias",
    "FusedLinear",
    "GPTAttention",
    "LayerNorm",
    "LogSoftmax",
    "MultiHeadAttention",
    "OptimizeReport",
    "QKVSelfAttention",
    "RMSNorm",
    "Softmax",
    "optimize",
    "register_attention",
    "register_flash_attention",
    "register_flop_formulas",
    "register_operators",
    "register_policy",
    "restore",
]

for _name in __all__:
    if isinstance(globals()[_name], type):
        respell(globals()[_name])
