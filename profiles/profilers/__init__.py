"""Read what profilers write: traces, tables of kernels, MXNet's own profiler."""
