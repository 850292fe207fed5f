"""The contraction kernel for Hopper: the hardware copies boxes of the operands."""
