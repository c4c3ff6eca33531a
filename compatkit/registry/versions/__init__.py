"""What changed between two components, and which step of the version that demands."""
