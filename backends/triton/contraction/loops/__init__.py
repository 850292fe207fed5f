"""The kernel for what is no matrix product: a nest of loops, summed elementwise."""
