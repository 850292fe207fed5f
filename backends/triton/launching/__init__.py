"""Compile, launch and time kernels."""
