"""What ``torch.compile`` does while it is patched: our rewrites first, where the backend is inductor."""

from __future__ import annotations

from typing import Any

from einops_fast.patching.function_body import FunctionBody

__all__ = ["CompileReplacement"]


class CompileReplacement:
    """Puts our backend before inductor. Other backends are left alone."""

    def __init__(self) -> None:
        import torch

        self._body = FunctionBody(torch.compile)

    def start(self) -> None:
        """Have what is compiled from now on be rewritten first."""
        self._body.exchange(self._compile)

    def stop(self) -> None:
        """Have torch's own code run again; what was compiled stays as it is."""
        self._body.put_back()

    def _compile(self, *model: Any, **options: Any) -> Any:
        from einops_fast.compiler.backend import einops_fast_backend, next_backend

        if options.get("backend", "inductor") == "inductor":
            options["backend"] = einops_fast_backend
            if None in (options.get("mode"), options.get("options")):  # or torch refuses them
                next_backend(options.get("options"), options.get("mode"))
        return self._body.native(*model, **options)
