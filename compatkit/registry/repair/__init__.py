"""Plans that mend what was found; nothing is ever deleted."""
