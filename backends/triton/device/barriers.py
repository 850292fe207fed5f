"""The barrier of a warp group's threads, which Gluon calls by two names."""

from __future__ import annotations

from triton.experimental.gluon import language as gl

# Newer versions of Triton call it otherwise.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
