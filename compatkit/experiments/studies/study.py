"""Definition of a study: arms, settings by size, measures, and the figures that the paper reports."""

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
"""Sizes that every study has: minutes on two cores, and the paper's size."""
_WORD = re.compile(r"[a-z0-9][a-z0-9_.+-]*")


@attrs.frozen(kw_only=True)
class Measure:
    """A quantity that every run of a study measures.

    Attributes:
        name: Lower-case word, for results.
        title: Title in tables and figures.
        unit: ``"1"`` for a share or a ratio, ``"bits"``, ``"s"``, ...
        better: Which values are better.
        drawn: Whether it has a panel in the figure of all arms.
    """

    name: str
    title: str
    unit: str = "1"
    better: Literal["higher", "lower", "none"] = "higher"
    drawn: bool = True


@attrs.frozen
class Reported:
    """A figure that the paper reports.

    Attributes:
        arm: An arm of the study, or of the paper if the study leaves it out.
        metric: A measure of the study, or what the paper measured instead.
        value: As printed in the paper, in ``unit``.
        source: Table, figure or section of the paper.
        spread: Standard deviation, if the paper gives one.
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
        values: By the name of the measure; None or missing if it cannot be measured.
        figure_data: JSON values for figures, such as pictures of weights.
        notes: Sentences that a reader must know; a note of several runs is shown once.

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
                    f"Study outcome: expected a finite number or None for {name}, got {value!r}. Return None, and say "
                    "why in a note."
                )
        try:
            json.dumps(self.figure_data, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"Study outcome: figure_data must hold JSON values: {error}.") from error


@attrs.frozen(kw_only=True, eq=False)
class Study:
    """An experiment of a paper, or one like it.

    Attributes:
        title: What is studied, in a few words.
        question: What it shows, in a sentence or two.
        reference: The paper: authors, year, title, section.
        arms: Lower-case, as in the paper; methods are joined by ``+``. The first is the baseline.
        measures: What every run measures.
        sizes: Settings by size as JSON values; at least ``cpu`` and ``paper``.
        scale: By size, how it differs from the paper; printed in every table, since figures at different scales cannot
            be compared. Empty if nothing differs.
        paper: Figures that the paper reports.
        data: Names of the data sets that it reads from files.
        run: Carries out one run: an arm with a seed.
        draw: Draws further figures from the results: PNG by file name without suffix.

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

    def __attrs_post_init__(self) -> None:
        """Check names and sizes."""
        for what, names in (("arms", self.arms), ("measures", [measure.name for measure in self.measures])):
            wrong = [name for name in names if not _WORD.fullmatch(name)]
            if wrong or not names or len(set(names)) != len(names):
                raise UsageError(
                    f"Study {self.title!r}: {what} are lower-case words, each once; got {', '.join(names) or 'none'}."
                )
        missing = [size for size in (CPU, PAPER) if size not in self.sizes or size not in self.scale]
        if missing:
            raise UsageError(
                f"Study {self.title!r}: sizes and scale need {CPU!r} and {PAPER!r}; {missing[0]!r} is not in both."
            )
