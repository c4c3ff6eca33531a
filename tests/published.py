"""The published methods of ``examples/methods``, as a user would name their files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "methods"


def module(name: str) -> ModuleType:
    """The module of a method's file."""
    specification = importlib.util.spec_from_file_location(f"published_{name}", FOLDER / f"{name}.py")
    assert specification is not None and specification.loader is not None
    made = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(made)
    return made


def factories(*names: str) -> dict[str, Any]:
    """The factories that these files register, by name."""
    found: dict[str, Any] = {}
    for name in names:
        module(name).compatkit_regularizers(found.__setitem__)
    return found
