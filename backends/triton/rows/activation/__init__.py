"""Bias, activation and dropout in one launch, and their gradients."""
