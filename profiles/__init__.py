"""What is measured, and how: public cases, one timing runner, and the tables, plots and page they fill.

``python -m einops_fast.profiles``, which is also ``einops-fast profile``, compares every framework found here;
``profile_einsum.py`` is the plain script to put under nvprof, nsys or ncu. See ``docs/design/profiles.md``.
"""
