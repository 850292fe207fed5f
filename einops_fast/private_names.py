"""The private and undocumented names of other libraries that the source uses: a new version may lack any of them.

Nothing imports this. ``tests/test_private_names.py`` compares it with the source and with the versions installed.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PRIVATE_NAMES", "TESTED", "PrivateNames"]

TESTED = {
    "cupy": ("14.2",),
    "mxnet": ("2.0.0b1",),
    "numpy": ("1.26", "2.4"),
    "torch": ("2.11", "2.13"),
    "transformers": ("5.17",),
    "triton": ("3.6", "3.7"),
}
"""The versions of each library that all of this was tested with. Of CuPy, the source uses public names only."""


class PrivateNames(NamedTuple):
    """Names that are used for one purpose.

    Attributes:
        owner: the module or class that has them.
        names: the names, apart by spaces.
        where: the module of ours that says what is done with them, or without.
        purpose: what they are for.
        without: what happens in a version that lacks them.
        only: the builds or versions that have them; ``''`` for all.
    """

    owner: str
    names: str
    where: str
    purpose: str
    without: str
    only: str = ""


_NO_BACKEND = "The torch backend can't be imported."
_CALLS_FAIL = "Calls that get there raise AttributeError."
_STAYS_WITH_THE_LIBRARY = "In the mode 'auto', contractions stay with the framework's own calls."

# fmt: off
_ROWS: tuple[tuple[str, ...], ...] = (
    # How torch looks at a call
    ("torch._C", "_get_deterministic_algorithms", "einops_fast.backends.torch.backend",
     "Ask whether torch is set to be deterministic; torch.compile can trace this question.",
     _NO_BACKEND),
    ("torch._C", "_is_any_autocast_enabled", "einops_fast.backends.torch.autocast",
     "Ask once about autocast on all devices.",
     _NO_BACKEND),
    ("torch._C", "_are_functorch_transforms_active", "einops_fast.backends.torch.types",
     "Leave calls under torch.func's transforms to torch.",
     _CALLS_FAIL),
    ("torch.autograd.forward_ad", "_current_level", "einops_fast.backends.torch.types",
     "Leave calls in forward mode to torch.",
     _CALLS_FAIL),
    ("torch._C._functorch", "is_legacy_batchedtensor", "einops_fast.backends.torch.types",
     "Recognise batches of gradients, as is_grads_batched makes them.",
     "They are taken for plain gradients, which kernels can't read."),
    ("torch._C._functorch", "unwrap_if_dead", "einops_fast.backends.torch.function",
     "Call an autograd function without what only transforms need.",
     _NO_BACKEND),
    ("torch._C", "_is_tracing _get_tracing_state", "einops_fast.backends.torch.types",
     "Recognise torch.jit.trace.",
     _NO_BACKEND),
    ("torch._C", "_set_tracing_state", "einops_fast.backends.torch.types",
     "Stop torch.jit.trace while sizes are read.",
     "The trace records what is read."),
    ("torch._C", "_get_dispatch_mode _TorchDispatchModeKey", "einops_fast.backends.torch.types",
     "Recognise make_fx, and tensors without values.",
     "A graph holds the calls that were planned for its example."),
    ("torch._ops", "mode_stack_state_for_pre_dispatch", "einops_fast.backends.torch.types",
     "Recognise make_fx(pre_dispatch=True).",
     _NO_BACKEND),
    ("torch._C", "_len_torch_dispatch_stack", "einops_fast.attention.torch_state",
     "Leave patched attention to torch where a mode wants to see it.",
     _CALLS_FAIL),
    ("torch.fx._symbolic_trace", "_is_fx_tracing_flag", "einops_fast.nn.injection.replacement",
     "Leave modules under torch.fx.symbolic_trace as they are.",
     _CALLS_FAIL),
    ("torch._C", "DisableTorchFunction", "einops_fast.patching.replacement",
     "Run a patched einsum under torch.set_default_device without the mode's part in each step.",
     _CALLS_FAIL),
    ("torch.overrides", "_get_current_function_mode_stack", "einops_fast.patching.replacement",
     "Tell torch.set_default_device from other modes.",
     _CALLS_FAIL),
    ("torch.utils._device", "DeviceContext", "einops_fast.patching.replacement",
     "Tell torch.set_default_device from other modes.",
     "Patched calls under a mode raise ImportError."),
    # torch.compile
    ("torch.compiler", "_dynamo_marked_constant", "einops_fast.runtime.tracing",
     "Mark functions for torch.compile to call while it traces, without importing torch.",
     "torch.compile follows them, and breaks the graph."),
    ("torch._guards", "TracingContext.try_get", "einops_fast.runtime.tracing",
     "Ask whether torch.compile traces.",
     _CALLS_FAIL),
    ("torch._dynamo", "graph_break", "einops_fast.backends.torch.attention.arrays",
     "Say why lengths that are read break a graph.",
     _CALLS_FAIL),
    ("torch", "_assert_async", "einops_fast.backends.torch.attention.implementations.nested",
     "Compare lengths when a compiled graph runs.",
     _CALLS_FAIL),
    # The host's time
    ("torch._C._dynamo.guards", "TensorGuards", "einops_fast.backends.torch.backend",
     "Compare operands with those of the last call in C++.",
     "Each call is looked up by its whole signature."),
    ("torch._C._dynamo.guards", "_empty_strided_cuda", "einops_fast.backends.torch.memory",
     "Make results past torch's dispatcher.",
     "torch.empty_strided makes them."),
    ("torch._C", "_cuda_getDevice _cuda_getCurrentRawStream", "einops_fast.backends.torch.memory",
     "Ask for the current device and stream.",
     "Kernels go to the default stream of device 0.", "torch with CUDA"),
    ("torch.cuda", "_sleep", "einops_fast.backends.torch.rates",
     "Keep a device busy without work while kernels to be timed are queued.",
     "The device isn't measured, and the rates are those of a table."),
    ("torch._VF", "einsum", "einops_fast.backends.torch.einsum.native",
     "Call einsum of two operands without what torch.einsum does for three.",
     "torch.einsum is called."),
    ("torch._C", "_get_fp32_precision_getter", "einops_fast.backends.torch.backend",
     "Read the precision of products of float32 (torch 2.9 or later).",
     "torch.backends.cuda.matmul.allow_tf32 is read."),
    ("torch._C", "_autograd._top_saved_tensors_default_hooks", "einops_fast.backends.torch.types",
     "Ask whether tensors are saved by hooks.",
     "Tensors count as saved: all shapes are planned at once, and row operators and attention stay with torch's."),
    ("torch._C", "_current_graph_task_id", "einops_fast.backends.torch.backend",
     "Ask whether a backward pass runs.",
     "It counts as if: all shapes are planned at once."),
    ("torch._C._autograd", "_get_current_graph_task_keep_graph", "einops_fast.backends.torch.ops.linear_cross_entropy",
     "Ask whether a backward pass may run again.",
     "It may: gradients aren't made in the memory of what was saved."),
    # Functions and operators of torch
    ("torch", "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
     "einops_fast.backends.torch.ops.softmax_pieces",
     "Write softmax and its gradient to memory that is there.",
     _CALLS_FAIL),
    ("torch", "_addmm_activation", "einops_fast.backends.torch.ops.linear",
     "Apply an activation in cuBLAS's epilogue.",
     _CALLS_FAIL),
    ("torch._C._nn", "scaled_dot_product_attention",
     "einops_fast.backends.torch.attention.implementations.cpu_gradients",
     "Call torch's attention while it is patched.",
     "Attention on a CPU raises AttributeError."),
    ("torch", "_scaled_dot_product_flash_attention_for_cpu",
     "einops_fast.backends.torch.attention.implementations.cpu_gradients",
     "Get the log of the denominator on a CPU.",
     "Attention on a CPU raises AttributeError."),
    ("torch.ops.aten", "_scaled_dot_product_flash_attention_for_cpu_backward",
     "einops_fast.backends.torch.attention.implementations.cpu_gradients",
     "Differentiate it.",
     "Attention on a CPU raises AttributeError."),
    ("torch.autograd.graph.Node", "_saved_query _saved_key _saved_value _saved_attn_mask _saved_is_causal _saved_scale",
     "einops_fast.backends.torch.attention.implementations.cpu_gradients",
     "Read what the gradient of attention on a CPU was made from, for second derivatives.",
     "Second derivatives of it raise AttributeError."),
    ("torch.ops.aten", "_scaled_dot_product_flash_attention _scaled_dot_product_cudnn_attention",
     "einops_fast.backends.torch.attention.implementations.sdpa",
     "Call one library of attention, by the causality of its own.",
     _CALLS_FAIL),
    ("torch._C._nn", "gelu", "einops_fast.nn.injection.conditions",
     "Recognise the function in activations of transformers.",
     "nn.optimize raises AttributeError."),
    ("torch.ops.mkldnn", "_is_mkldnn_fp16_supported _is_mkldnn_bf16_supported", "einops_fast.backends.torch.steps",
     "Ask which halves oneDNN multiplies on this CPU.",
     "It counts as multiplying them."),
    ("torch.library.Library", "_destroy", "einops_fast.attention.replacement",
     'Undo patch("torch.sdpa").',
     "unpatch raises AttributeError."),
    ("torch._ops.OpOverload", "_dispatch_cache", "einops_fast.attention.replacement",
     "Have torch's compilers forget what was patched.",
     "unpatch raises AttributeError."),
    # Attributes of torch's objects
    ("torch.Tensor", "_version", "einops_fast.nn.masks",
     "Notice changes in place.",
     _CALLS_FAIL),
    ("torch.Tensor", "_is_view", "einops_fast.backends.torch.einsum.autograd",
     "Return no view from an autograd function.",
     _CALLS_FAIL),
    ("torch.UntypedStorage", "_cdata", "einops_fast.backends.torch.attention.implementations.four_axes",
     "Tell views from copies.",
     _CALLS_FAIL),
    ("torch.nested._internal.nested_tensor.NestedTensor", "_ragged_idx _maybe_max_seqlen _get_max_seqlen",
     "einops_fast.backends.torch.attention.implementations.nested",
     "Find the jagged axis and its longest sequence.",
     "Attention of nested tensors raises AttributeError."),
    ("torch.nn.Module", "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks _wrapped_call_impl",
     "einops_fast.nn.injection.conditions",
     "Call modules that hooks observe.",
     "nn.optimize raises AttributeError."),
    ("torch.nn.modules.module", "_global_forward_hooks _global_forward_pre_hooks "
     "_global_backward_hooks _global_backward_pre_hooks",
     "einops_fast.nn.injection.conditions",
     "Call modules that hooks of all modules observe.",
     "einops_fast.nn can't be imported."),
    # Triton
    ("triton.compiler", "ASTSource", "einops_fast.backends.triton.launching.compiling",
     "Compile a kernel without launching it.",
     "Kernels can't be imported."),
    ("triton.experimental.gluon._runtime", "GluonASTSource", "einops_fast.backends.triton.launching.compiling",
     "Compile a kernel in Gluon without launching it.",
     "Kernels can't be imported."),
    ("triton.runtime", "driver.active.get_current_target", "einops_fast.backends.triton.launching.launch",
     "Ask for the GPU that kernels are compiled for.",
     _CALLS_FAIL),
    ("triton.runtime", "driver.set_active", "einops_fast.backends.triton.launching.rehearsing",
     "Compile for a device in a process that has none.",
     _STAYS_WITH_THE_LIBRARY),
    ("triton.runtime.cache", "triton_key", "einops_fast.backends.triton.launching.rehearsing",
     "Hash Triton, which takes a second, in a thread of its own.",
     _STAYS_WITH_THE_LIBRARY),
    ("triton.backends.compiler", "GPUTarget", "einops_fast.backends.triton.launching.rehearsing",
     "Say which device to compile for.",
     _STAYS_WITH_THE_LIBRARY),
    ("triton.backends.nvidia.driver", "CudaLauncher", "einops_fast.backends.triton.launching.rehearsing",
     "Compile what Triton launches a kernel by, beside it.",
     _STAYS_WITH_THE_LIBRARY),
    ("triton.runtime", "driver.active.get_current_device", "einops_fast.backends.triton.launching.compiling",
     "Tell apart the kernels of several GPUs.",
     _CALLS_FAIL),
    ("triton.knobs.runtime", "interpret", "einops_fast.backends.triton.launching.launch",
     "Ask whether kernels run in the interpreter.",
     "Kernels can't be imported."),
    ("triton.knobs.runtime", "add_stages_inspection_hook", "einops_fast.backends.triton.launching.compiling",
     "Change programs between two stages of the compiler, past faults of LLVM and ptxas.",
     "Kernels can't be compiled."),
    ("triton.backends.nvidia.driver", "_BASE_ARGS_FORMAT", "einops_fast.backends.triton.launching.bare_launch",
     "Recognise the function that Triton writes to launch a kernel.",
     "Kernels are launched through all of Triton's launcher.", "Triton 3.6"),
    ("triton.backends.nvidia.driver", "make_tensordesc_arg", "einops_fast.backends.triton.launching.kernel_call",
     "Expand a descriptor once for each address.",
     _CALLS_FAIL),
    ("triton.experimental.gluon.language.shared_memory_descriptor", "_reinterpret",
     "einops_fast.backends.triton.contraction.boxes.epilogue",
     "Take a tile in shared memory apart in pieces.",
     "Kernels with such an epilogue can't be compiled, and others are used."),
    # Others
    ("mxnet", "_deferred_compute.is_deferred_compute", "einops_fast.backends.mxnet.ops",
     "Recognise hybridized blocks while they are traced.",
     "The MXNet backend can't be imported."),
    ("mxnet.base", "_LIB.MXNDArrayReshape64", "einops_fast.backends.mxnet.ops",
     "Reshape without a copy.",
     _CALLS_FAIL),
    ("numpy.einsum.__globals__", "_einsum_dispatcher", "einops_fast.patching.small_calls",
     "Exchange what finds the operands of a patched numpy.einsum.",
     "It stays: small calls take 0.3 µs longer."),
    ("numpy._core.umath", "_extobj_contextvar _make_extobj", "einops_fast.backends.numpy",
     "Ignore floating-point errors in a call without making the state anew.",
     "numpy.errstate does it, in 1 µs more.", "NumPy 2"),
    ("flash_attn.cute.interface", "_flash_attn_fwd _flash_attn_bwd",
     "einops_fast.backends.torch.attention.implementations.fa4_ops",
     "Call FlashAttention-4 without its own autograd function.",
     _CALLS_FAIL),
    ("transformers.PretrainedConfig", "_attn_implementation", "einops_fast.nn.injection.conditions",
     "Ask which attention a model was given.",
     "Attention stays transformers' own."),
    ("transformers.PreTrainedModel", "_loss_function", "einops_fast.nn.injection.loss",
     "Put a loss in the place of a model's own.",
     "The model's own loss is computed."),
    ("transformers.utils.output_capturing", "_active_collector", "einops_fast.nn.injection.conditions",
     "Ask whether hooks of transformers collect weights of attention.",
     "None are thought to be collected, as in versions that have no such module."),
)
# fmt: on

PRIVATE_NAMES = tuple(PrivateNames(*row) for row in _ROWS)
