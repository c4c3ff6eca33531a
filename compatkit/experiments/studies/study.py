"""Definition of a study: arms, settings by size, measures, and the paper's figures."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.experiments.studies.runs import Run

CPU, PAPER = "cpu", "paper"
"""Sizes of every study: minutes on two cores, and the paper's size."""
WORD = re.compile(r"[a-z0-9][a-z0-9_.+-]*")
"""Name of an arm or a measure."""


@attrs.frozen(kw_only=True)
class Measure:
    """Quantity that every run of a study measures.

    Attributes:
        name: Name in results, in lower case.
        title: Title in tables and figures.
        unit: ``"1"`` for a share or a ratio, ``"bits"``, ``"s"``, ...
        better: Whether higher or lower values are better.
        drawn: Whether to draw it in the figure of all arms.
    """

    name: str
    title: str
    unit: str = "1"
    better: Literal["higher", "lower", "none"] = "higher"
    drawn: bool = True


@attrs.frozen
class Reported:
    """Value in the paper.

    Attributes:
        arm: Arm of the study, or another one of the paper.
        metric: Measure of the study, or another one of the paper.
        value: Value as printed in the paper, in ``unit``.
        source: Table, figure or section of the paper.
        unit: Unit, as for ``Measure``.
        spread: Standard deviation; None if the paper has none.
    """

    arm: str
    metric: str
    value: float
    source: str
    unit: str = "1"
    spread: float | None = None


@attrs.frozen(kw_only=True)
class Outcome:
    """Measurements of one run.

    Attributes:
        values: Value by measure; None or missing if it cannot be measured.
        figure_data: JSON values for figures, such as weights to draw.
        notes: Notes for the reader; equal notes of several runs are shown once.

    Raises:
        UsageError: A value is not a finite number, or ``figure_data`` is not JSON.
    """

    values: Mapping[str, float | None]
    figure_data: Mapping[str, Any] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Check that values and ``figure_data`` can be written as JSON."""
        for name, value in self.values.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and math.isfinite(value)):
                raise UsageError(
                    f"Study outcome: expected a finite number or None for {name}, got {value!r}. Return None, with the "
                    "reason in a note."
                )
        try:
            json.dumps(self.figure_data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"Study outcome: figure_data must hold JSON values: {error}.") from error


@attrs.frozen(kw_only=True, eq=False)
class Study:
    """Experiment of a paper, or one like it.

    Attributes:
        title: Title in a few words.
        question: Question of the study in one or two sentences.
        reference: Paper: authors, year, title, section.
        arms: Names of the arms in lower case, as in the paper; methods are joined by ``+``. The first is the baseline.
        measures: Measures of every run.
        sizes: Settings by size as JSON values; at least ``cpu`` and ``paper``.
        scale: Differences from the paper by size, printed in every table, since figures at different scales cannot be
            compared. Empty if nothing differs.
        paper: Values in the paper.
        data: Names of the data sets that it reads from files.
        extends: Arm that arms of the user extend by regularizers, ``run.added``; None: there are no such arms.
        closed: Why there are no such arms.
        run: Function that carries out a run of an arm with a seed.
        draw: Function that draws further figures from ``Results``: PNG by file name without suffix.

    Raises:
        UsageError: A name is not lower-case or is repeated, or a size is missing.
    """

    title: str
    question: str
    reference: str
    arms: tuple[str, ...]
    measures: tuple[Measure, ...]
    sizes: Mapping[str, Mapping[str, Any]]
    scale: Mapping[str, str]
    paper: tuple[Reported, ...]
    run: Callable[[Run], Outcome]
    draw: Callable[[Any], Mapping[str, bytes]] | None = None  # takes Results, which import this module
    data: tuple[str, ...] = ()
    extends: str | None = None
    closed: str = ""

    def __attrs_post_init__(self) -> None:
        """Check names and sizes."""
        for what, names in (("arms", self.arms), ("measures", [measure.name for measure in self.measures])):
            wrong = [name for name in names if not WORD.fullmatch(name)]
            if wrong or not names or len(set(names)) != len(names):
                raise UsageError(
                    f"Study {self.title!r}: {what} must be distinct lower-case words; got {', '.join(names) or 'none'}."
                )
        if self.extends is not None and self.extends not in self.arms:
            raise UsageError(
                f"Study {self.title!r}: it extends {self.extends!r}, which is not one of its arms."
            )
        missing = [size for size in (CPU, PAPER) if size not in self.sizes or size not in self.scale]
        if missing:
            raise UsageError(
                f"Study {self.title!r}: sizes and scale need {CPU!r} and {PAPER!r}; {missing[0]!r} is not in both."
            )
