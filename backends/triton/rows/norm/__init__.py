"""Layer norm and RMS norm, also after dropout and a sum, and their gradients."""
