"""The study of the host's time per call."""
