"""Contracts of components, the check that compares two of them, and measured evidence; plain values, no torch."""
