"""Plan an einsum: from text and layouts to the steps of a plan, without a framework."""
