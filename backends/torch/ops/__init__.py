"""The row operators on torch's tensors: by our kernels on a GPU, else by torch's own functions."""
