"""Time a call, check its result, and tell what the device could reach."""
