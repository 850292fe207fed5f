"""Attention in any axis order."""
