"""Collecting garbage: what is kept, what may go, and taking it out beside writers."""
