"""Contracts: what crosses a seam, which rules two contracts meet, and what evidence says; plain values, no torch."""
