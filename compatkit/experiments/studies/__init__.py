"""Studies: experiments of papers by their number; what one is, where they are found, and how their runs are made."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compatkit.experiments.studies.finding import find, numbers
    from compatkit.experiments.studies.results import Results
    from compatkit.experiments.studies.running import carry_out
    from compatkit.experiments.studies.runs import Run
    from compatkit.experiments.studies.study import Measure, Outcome, Reported, Study

_HOMES = {
    "Measure": "compatkit.experiments.studies.study",
    "Outcome": "compatkit.experiments.studies.study",
    "Reported": "compatkit.experiments.studies.study",
    "Results": "compatkit.experiments.studies.results",
    "Run": "compatkit.experiments.studies.runs",
    "Study": "compatkit.experiments.studies.study",
    "carry_out": "compatkit.experiments.studies.running",
    "find": "compatkit.experiments.studies.finding",
    "numbers": "compatkit.experiments.studies.finding",
}

__all__ = ["Measure", "Outcome", "Reported", "Results", "Run", "Study", "carry_out", "find", "numbers"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'compatkit.experiments.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
