"""Single-file exports that run without a registry: all tensors, and metadata to rebuild and use the network."""
