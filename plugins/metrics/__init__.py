"""Metrics, one per file. Each module docstring gives paper, equations, units and cost."""
