"""MXNet's NumPy arrays."""
