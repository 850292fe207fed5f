"""What goes before and after the attention kernels: copies, bounds of masks, sums of parts."""
