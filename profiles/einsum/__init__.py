"""The study of einsum's public problems."""
