"""Batches of a task: what an epoch draws, where images are kept, loaders."""
