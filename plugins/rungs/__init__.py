"""Rungs of bridges: ways to join a head to an extractor that it was not trained with."""
