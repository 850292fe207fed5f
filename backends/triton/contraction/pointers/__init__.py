"""The contraction kernel that computes addresses: for every GPU and every layout."""
