"""Checkpoints of other programs: detect the format and read the tensors without executing code."""
