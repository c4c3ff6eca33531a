"""Remotes: places outside this machine that registries are pushed to and pulled from."""
