"""Derive the ports of a module from runs at several batch and image sizes."""
