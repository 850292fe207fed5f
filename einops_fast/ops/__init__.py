"""Fused layers as functions: ``from einops_fast import ops``. The names of the arguments are torch's.

On a GPU, torch's tensors go to kernels of our own, which take any strides. On a CPU they go to torch's own functions;
NumPy's, CuPy's and MXNet's arrays to those of their framework. Importing this imports no framework.
"""

from einops_fast.ops.activation import bias_gelu, dropout_bias_activation, linear
from einops_fast.ops.cross_entropy import cross_entropy, linear_cross_entropy
from einops_fast.ops.norm import dropout_add_layer_norm, layer_norm, rms_norm
from einops_fast.ops.self_attention import qkv_self_attention
from einops_fast.ops.softmax import log_softmax, softmax

__all__ = [
    "bias_gelu",
    "cross_entropy",
    "dropout_add_layer_norm",
    "dropout_bias_activation",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "qkv_self_attention",
    "rms_norm",
    "softmax",
]
