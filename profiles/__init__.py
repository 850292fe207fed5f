"""What is measured, and how: public cases, one timing runner, and the tables they fill.

``python -m einops_fast.profiles`` compares every framework found here; ``profile_einsum.py`` is the plain
script to put under nvprof, nsys or ncu.
"""
