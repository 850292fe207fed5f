"""CuPy's arrays."""
