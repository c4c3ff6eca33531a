"""Differences between two components, and the version step that they require."""
