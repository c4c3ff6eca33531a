"""Sweeps: many runs of one recipe on one or several processes or machines; each is reproducible alone, bitwise."""
