"""The contraction kernel for float32 without tensor cores: each thread sums a tile of its own."""
