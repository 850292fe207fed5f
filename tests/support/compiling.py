"""Programs that compile kernels for GPUs that needn't be here."""

from pathlib import Path

from python_process import SUPPORT, run_python

FINISH = """
import re
from types import SimpleNamespace

import triton
from triton._C.libtriton import llvm
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

_whole = llvm.optimize_module, llvm.link_extern_libs, CUDABackend.make_ptx, CUDABackend.make_cubin


def _named(self, source, metadata, options, capability):
    metadata["name"] = re.search(r"^define .*@(\\w+)\\(", source, re.MULTILINE)[1]
    return source


def finish(whole):
    # Whether LLVM and ptxas make machine code of what follows, which takes more than half of the time; else it is
    # lowered to LLVM's language, shared memory included, which is what all of Triton's own passes can fail at.
    nothing = lambda *given: None
    llvm.optimize_module, llvm.link_extern_libs, CUDABackend.make_ptx, CUDABackend.make_cubin = (
        _whole if whole else (nothing, nothing, _named, lambda *given: b"")
    )


def pretend(capability):
    # Kernels are compiled for such a device; what Triton would load and launch stays on the host.
    target = GPUTarget("cuda", capability, 32)
    driver.set_active(SimpleNamespace(
        get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0
    ))
    triton.compiler.CompiledKernel._init_handles = lambda self: None
    triton.compiler.CompiledKernel.function = 0
    triton.compiler.CompiledKernel.run = property(lambda self: lambda *arguments: None)
"""
"""Defines ``finish`` and ``pretend`` for a program."""


def printed(program: str, folder: Path, *given: str) -> list[str]:
    """Lines that a program prints. Whether Triton interprets is decided when it is imported: hence a new process.

    Args:
        program: its text.
        folder: an empty one, for what is cached.
        given: its arguments.
    """
    caches = dict.fromkeys(("TRITON_CACHE_DIR", "EINOPS_FAST_CACHE_DIR"), folder)
    # Line numbers take the compiler some time, and nobody reads them here.
    settings = {"TRITON_INTERPRET": 0, "TRITON_DISABLE_LINE_INFO": 1, "EINOPS_FAST_AUTOTUNE": "never"}
    done = run_python("-c", program, *given, path=[SUPPORT], **settings, **caches)
    return done.stdout.splitlines()
