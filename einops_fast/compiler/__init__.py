"""Rewrites of programs that torch.compile compiles."""
