"""Sweeps: many runs of one recipe, on whatever there is to run them; each can be had alone, bit for bit."""
