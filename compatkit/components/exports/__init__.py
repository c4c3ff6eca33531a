"""Single-file exports that run without a registry: all tensors, and the metadata that rebuilds the network."""
