"""Tell modules that another process can import from those that exist in this process alone, such as plugin files."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


def is_importable(module: str) -> bool:
    """Return whether an import system would find a module that is not imported yet; imports nothing.

    Args:
        module: Dotted name of the module.
    """
    path: list[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _found(".".join(parts[:count]), path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return module != "__main__"


def _found(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Return the spec that the first finder gives; ``importlib.util.find_spec`` would look into ``sys.modules``."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None
