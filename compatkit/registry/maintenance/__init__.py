"""Maintenance of a registry: verify, repair, collect garbage."""
