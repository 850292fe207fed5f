"""`einops-fast tune`: what the calls of a recorded run need is compiled and measured ahead."""
