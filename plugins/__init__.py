"""Plugins that come with compatkit: one file a method, found as any other package's are.

A file ``<kind>/<name>.py`` is the entry point ``<kind>.<name>``; nothing here is imported by its name.
"""
