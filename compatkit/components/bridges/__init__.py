"""Bridges between parts that were not trained together: try rungs from the cheapest to the most expensive."""
