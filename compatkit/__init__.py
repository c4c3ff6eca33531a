"""compatkit: train network parts that fit, keep them as versioned components, recombine them, report what fits.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that ``import compatkit`` stays
light.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _homes() -> dict[str, tuple[str, str]]:
    homes: dict[str, tuple[str, str]] = {}
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(line, ast.ImportFrom):
            homes |= {alias.name: (line.module or "", alias.name) for alias in line.names}
        elif isinstance(line, ast.Assign):  # public under another name
            homes[ast.unparse(line.targets[0])] = homes.pop(ast.unparse(line.value))
    return homes


_HOMES = _homes()
"""Module and name there of each public name."""
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("compatkit")
    elif name in _HOMES:
        module, attribute = _HOMES[name]
        if module != __name__ and hasattr(home := import_module(module), attribute):
            value = getattr(home, attribute)
        else:
            value = import_module(f"{module}.{attribute}")
    else:
        raise AttributeError(f"module 'compatkit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
