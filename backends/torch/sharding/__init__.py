"""DTensors: calls past one device, from the equation to what each rank computes."""
