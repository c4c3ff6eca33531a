"""Weights that were saved elsewhere: which format a file has, and its tensors, read without running what it holds."""
