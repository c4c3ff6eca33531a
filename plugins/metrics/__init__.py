"""Metrics, one a file: they go through batches once and say what, in which unit, from which paper."""
