"""What climbing found: one step a rung, and the bridge that was chosen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.bridges.judging import Judged
from compatkit.components.bridges.rungs import LABELLED, RUNGS
from compatkit.contracts.display import Shown
from compatkit.contracts.evidence import Figure, Rung
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.components.bridges.candidate import Candidate
    from compatkit.evaluation.recombination import Recombination


@attrs.frozen(eq=False)
class Step:
    """What one rung gave.

    Attributes:
        rung: Its name.
        agreed: How often it says on held-out images what the head's own network says; None where it was left out.
        explained: R2 of the features that were fitted to; None where none were.
        images: Unlabelled images that were used: those whose features were paired, or those that were trained on;
            of ``statistics`` those that it was estimated on.
        estimated: Images that statistics of batch normalisation were estimated on.
        labels: Labelled images that were trained on.
        seconds: Of fitting, training and estimating statistics, as if it were the only rung: what several stand on,
            such as moments, is made once and counts for each. Features are made before.
        accuracy: On test images, where they were given.
        checked: How often it is right on labelled images that nothing was fitted to, where labels were given.
        right: On which of them it is.
        note: Why it was left out, or what to know of it.
        candidate: The bridge; None where it was left out.
    """

    rung: str
    agreed: Judged | None = None
    explained: float | None = None
    images: int = 0
    estimated: int = 0
    labels: int = 0
    seconds: float = 0.0
    accuracy: Figure | None = None
    checked: Judged | None = None
    right: Tensor | None = attrs.field(default=None, repr=False)
    note: str = ""
    candidate: Candidate | None = attrs.field(default=None, repr=False)

    @property
    def agreement(self) -> Figure | None:
        """Share of held-out images of which it says what the head's own network says; None where it was left out."""
        return None if self.agreed is None else self.agreed.figure

    @property
    def judged(self) -> Judged | None:
        """What it is judged by: a rung that was trained with labels by those kept apart, any other by agreement."""
        return self.checked if self.rung in LABELLED and self.agreed is not None else self.agreed

    @property
    def meaning(self) -> str:
        """``"fit"``, ``"doubtful"`` or ``"no fit"``; empty where it was left out."""
        return "" if self.judged is None else self.judged.says

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        agreed, checked = self.agreed, self.checked
        figures = {"agreement": self.agreement, "accuracy": self.accuracy}
        figures["checked"] = None if checked is None else checked.figure
        plain = ("rung", "explained", "images", "estimated", "labels", "seconds", "note")
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: _shown(one) for name, one in figures.items()},
            "chance": None if agreed is None else agreed.chance,
            "kappa": None if agreed is None else agreed.kappa,
            "checked_chance": None if checked is None else checked.chance,
            "says": self.meaning,
        }


def _shown(one: Figure | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"share": one.accuracy, "low": one.low, "high": one.high, "images": one.count}


@attrs.frozen(eq=False, repr=False)
class Bridge(Shown):
    """A pair that was bridged.

    Attributes:
        extractor: ``name@version``.
        head: ``name@version``.
        steps: What each rung gave, in the order of climbing.
        chosen: Name of the rung that was chosen.
        recombination: The network that it makes, in eval mode.
        facts: Names, digests and counts of the images, where features were paired, seed; ``largest``, the share of
            the most frequent answer of the head's own network on held-out images; and ``reference``, its accuracy on
            the test images, where there are any.
        notes: What to know, each a sentence.
        not_climbed: Rungs that were left off because an earlier one agreed enough.
    """

    extractor: str
    head: str
    steps: tuple[Step, ...]
    chosen: str
    recombination: Recombination
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    not_climbed: tuple[str, ...] = ()

    def step(self, rung: str) -> Step:
        """Return what a rung gave.

        Raises:
            UsageError: It was not climbed.
        """
        for one in self.steps:
            if one.rung == rung:
                return one
        climbed = ", ".join(one.rung for one in self.steps)
        raise UsageError(f"The rung {rung!r:.40} was not climbed; climbed were {climbed}.", subject=rung)

    @property
    def agreement(self) -> Figure:
        """Of the chosen rung."""
        found = self.step(self.chosen).agreement
        if found is None:
            raise UsageError(f"The rung {self.chosen} was left out.")
        return found

    @property
    def says(self) -> str:
        """``"fit"``, ``"doubtful"`` or ``"no fit"``: whether to go on with it."""
        return self.step(self.chosen).meaning

    @property
    def judged_by(self) -> str:
        """``"labels"`` where the chosen rung was trained with some, else ``"agreement"``."""
        return "labels" if self.chosen in LABELLED else "agreement"

    def lines(self) -> list[str]:
        """Return what to tell of it beside a figure: by which rung, what each gave, and what to know of it."""
        found = [f"Bridged by {self.chosen}: {RUNGS[self.chosen]}; {self.says}."]
        for one in self.steps:
            if one.agreement is None:
                found.append(f"Rung {one.rung}: left out: {one.note}")
                continue
            right = "" if one.accuracy is None else f", accuracy {one.accuracy.accuracy:.3f}"
            found.append(
                f"Rung {one.rung}: agreement {one.agreement.accuracy:.3f}{right}, {one.images:,} images, "
                f"{one.seconds:.2f} s."
            )
        return [*found, *self.notes]

    def ladder(self) -> tuple[Rung, ...]:
        """Return what each rung gave that was not left out, as a cell of a matrix holds it."""
        return tuple(
            Rung(
                one.rung,
                one.seconds,
                one.images,
                one.agreement,
                one.accuracy,
                one.rung == self.chosen,
                one.labels,
            )
            for one in self.steps
            if one.agreement is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        steps = [one.to_json() for one in self.steps]
        return {
            "extractor": self.extractor,
            "head": self.head,
            "chosen": self.chosen,
            "says": self.says,
            "judged_by": self.judged_by,
            "steps": steps,
            "not_climbed": list(self.not_climbed),
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }

    def to_png(self, path: str | os.PathLike[str] | None = None) -> bytes:
        """Return a picture of the ladder, agreement and accuracy against seconds; write it where a path is given.

        Raises:
            EnvironmentFailure: The file cannot be written.
        """
        from compatkit.reports.ladder import draw
        from compatkit.reports.writing import write

        picture = draw(self.ladder(), f"{self.extractor} + {self.head}")
        if path is not None:
            write(path, picture)
        return picture

    def __str__(self) -> str:
        return "\n".join([f"{self.extractor} + {self.head}", *self.lines()])
