"""The attention kernels that have all positions of a short attention at once."""
