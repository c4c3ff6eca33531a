"""Data sets: images with class names, read from packs, folders, tables and shards, or from plugins.

Everything is imported on first use, so that listing and checking components stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet, Split
    from compatkit.data.folders import read_folder
    from compatkit.data.loading import load
    from compatkit.data.specification import load_spec

_MODULES = {
    "DataSet": "compatkit.data.dataset",
    "Split": "compatkit.data.dataset",
    "load": "compatkit.data.loading",
    "load_spec": "compatkit.data.specification",
    "read_folder": "compatkit.data.folders",
}

__all__ = ["DataSet", "Split", "load", "load_spec", "read_folder"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'compatkit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
