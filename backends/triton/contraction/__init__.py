"""Contractions by kernels of our own: the ways to run a step, and the choice of one."""
