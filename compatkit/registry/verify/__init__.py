"""Whether a registry's files are what they should be: every fault found and named."""
