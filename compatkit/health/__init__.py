"""The state of an installation: what is there, what does not fit together, what to do about it."""
