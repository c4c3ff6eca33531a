"""Studies: numbered experiments of papers with their runs and results."""

from compatkit.experiments.studies.finding import find, numbers
from compatkit.experiments.studies.results import Results, StudyDocument, read
from compatkit.experiments.studies.running import carry_out as run
from compatkit.experiments.studies.runs import Run
from compatkit.experiments.studies.study import Measure, Outcome, Reported, Study

__all__ = [
    "Measure",
    "Outcome",
    "Reported",
    "Results",
    "Run",
    "Study",
    "StudyDocument",
    "find",
    "numbers",
    "read",
    "run",
]
