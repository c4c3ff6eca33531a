"""Registries that are far: on anything that fsspec reaches, such as an object store."""
