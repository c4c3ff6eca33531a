"""Studies: experiments of papers by their number; what one is, where they are found, and how their runs are made."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit.studies.finding import find, numbers
    from compatkit.studies.results import Results
    from compatkit.studies.running import carry_out
    from compatkit.studies.runs import Run
    from compatkit.studies.study import Measure, Outcome, Reported, Study

_HOMES = {
    "Measure": "compatkit.studies.study",
    "Outcome": "compatkit.studies.study",
    "Reported": "compatkit.studies.study",
    "Results": "compatkit.studies.results",
    "Run": "compatkit.studies.runs",
    "Study": "compatkit.studies.study",
    "carry_out": "compatkit.studies.running",
    "find": "compatkit.studies.finding",
    "numbers": "compatkit.studies.finding",
}

__all__ = ["Measure", "Outcome", "Reported", "Results", "Run", "Study", "carry_out", "find", "numbers"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'compatkit.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
