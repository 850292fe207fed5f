"""torch's tensors: what each step becomes, and what torch has to know of our functions."""
