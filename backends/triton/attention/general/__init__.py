"""The attention kernels for every feature and every GPU."""
