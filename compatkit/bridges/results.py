"""What climbing found: one step a rung, and the bridge that was chosen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.bridges.rungs import RUNGS, said
from compatkit.errors import UsageError
from compatkit.evaluation.cells import Figure, Rung

if TYPE_CHECKING:
    from compatkit.bridges.candidate import Candidate
    from compatkit.evaluation.recombination import Recombination


@attrs.frozen(eq=False)
class Step:
    """What one rung gave.

    Attributes:
        rung: Its name.
        agreement: Share of held-out images of which it says what the head's own network says; None where it was left
            out.
        explained: R2 of the features that were fitted to; None where none were.
        images: Unlabelled images that were used: for the fit, and for statistics.
        labels: Labelled images that were used.
        seconds: Of fitting, training and estimating statistics; features are made before.
        accuracy: On test images, where they were given.
        checked: Accuracy on labelled images that nothing was fitted to, where labels were given.
        note: Why it was left out, or what to know of it.
        candidate: The bridge; None where it was left out.
    """

    rung: str
    agreement: Figure | None = None
    explained: float | None = None
    images: int = 0
    labels: int = 0
    seconds: float = 0.0
    accuracy: Figure | None = None
    checked: Figure | None = None
    note: str = ""
    candidate: Candidate | None = None

    @property
    def meaning(self) -> str:
        """``"fit"``, ``"doubtful"`` or ``"no fit"``; empty where it was left out."""
        return "" if self.agreement is None else said(self.agreement.accuracy)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        figures = {
            name: None
            if one is None
            else {"share": one.accuracy, "low": one.low, "high": one.high, "images": one.count}
            for name, one in (
                ("agreement", self.agreement),
                ("accuracy", self.accuracy),
                ("checked", self.checked),
            )
        }
        plain = ("rung", "explained", "images", "labels", "seconds", "note")
        return {name: getattr(self, name) for name in plain} | figures | {"says": self.meaning}


@attrs.frozen(eq=False)
class Bridge:
    """A pair that was bridged.

    Attributes:
        extractor: ``name@version``.
        head: ``name@version``.
        steps: What each rung gave, in the order of climbing.
        chosen: Name of the rung that was chosen.
        recombination: The network that it makes, in eval mode.
        facts: Names, digests and counts of the images, where features were paired, seed, and ``reference``: the
            accuracy of the head's own network on the test images, where there are any.
        notes: What to know, each a sentence.
    """

    extractor: str
    head: str
    steps: tuple[Step, ...]
    chosen: str
    recombination: Recombination
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()

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
        return said(self.agreement.accuracy)

    def lines(self) -> list[str]:
        """Return what to tell of it beside a figure: by which rung, and what each gave."""
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
        return found

    def ladder(self) -> tuple[Rung, ...]:
        """Return what each rung gave that was not left out, as a cell of a matrix holds it."""
        return tuple(
            Rung(one.rung, one.seconds, one.images, one.agreement, one.accuracy, one.rung == self.chosen)
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
            "steps": steps,
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
