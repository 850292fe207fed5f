"""Cross entropy and its gradient, and the sums of losses."""
