"""Softmax and its logarithm, with masks, and their gradients."""
