"""The study of attention."""
