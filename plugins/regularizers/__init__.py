"""Regularizers: one method a file, named after the method."""
