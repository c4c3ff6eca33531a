"""Remotes: object stores and other addresses to push registries to and pull them from."""
