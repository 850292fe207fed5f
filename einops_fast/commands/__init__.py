"""The commands of ``einops-fast``, a file each."""
