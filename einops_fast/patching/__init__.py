"""Put einops_fast beneath a framework's own functions, and take it away again."""
