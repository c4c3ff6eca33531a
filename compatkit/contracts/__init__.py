"""Contracts: what crosses a cut, which rules two contracts meet, and what evidence says; plain values, no torch."""
