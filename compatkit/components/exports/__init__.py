"""One file that runs without a registry: all tensors, and in its metadata how to rebuild and use the network."""
