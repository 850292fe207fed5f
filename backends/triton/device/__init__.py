"""Device functions and records that kernels of every kind share."""
