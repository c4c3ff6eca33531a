"""Measuring: normalization policies, recombined networks, the matrix of extractors and heads."""
