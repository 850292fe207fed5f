"""The implementations of attention that torch's libraries offer, and our own kernels: one file for each library."""
