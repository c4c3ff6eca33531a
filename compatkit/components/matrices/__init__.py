"""Matrices from evidence: which components and cells, what is known of them, and what is to be measured."""
