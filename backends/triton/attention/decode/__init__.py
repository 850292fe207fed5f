"""Hopper's attention kernel for few queries and many keys."""
