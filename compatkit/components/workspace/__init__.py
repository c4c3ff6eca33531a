"""The public registry: the store, and on top of it building, checking, recombining and measuring."""

from compatkit.components.workspace.registry import Registry

__all__ = ["Registry"]
