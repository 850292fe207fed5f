"""The study of contractions, with further cases and peers."""
