"""The kernel that multiplies a chain of small matrices in one launch."""
