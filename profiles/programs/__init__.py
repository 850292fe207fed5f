"""Whole programs, unmodified: eager, compiled by torch, and compiled with ours."""
