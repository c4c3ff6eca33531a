"""Data sets of the studies, one source per file: drawn, simulated, or read from their published files."""
