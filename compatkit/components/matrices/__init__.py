"""Compatibility matrices from evidence: selection of components and cells, known results, missing measurements."""
