"""compatkit: train network parts that fit, store them as versioned components, recombine them, report what fits.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that ``import compatkit`` stays
light.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _read_stub() -> dict[str, tuple[str, str]]:
    """Return module and attribute of each public name, from ``__init__.pyi``."""
    sources: dict[str, tuple[str, str]] = {}
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(line, ast.ImportFrom):
            sources |= {alias.name: (line.module or "", alias.name) for alias in line.names}
        elif isinstance(line, ast.Assign):  # alias
            sources[ast.unparse(line.targets[0])] = sources.pop(ast.unparse(line.value))
    return sources


_SOURCES = _read_stub()
__all__ = ["__version__", *_SOURCES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("compatkit")
    elif name in _SOURCES:
        module, attribute = _SOURCES[name]
        if module != __name__ and hasattr(owner := import_module(module), attribute):
            value = getattr(owner, attribute)
        else:
            value = import_module(f"{module}.{attribute}")
    else:
        raise AttributeError(f"module 'compatkit' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
