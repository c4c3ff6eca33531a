"""Climbing the ladder: rung after rung, each judged by its agreement with the head's own network on held-out images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs
from torch import Tensor, nn

from compatkit.components.bridges import absorbing, closed, training
from compatkit.components.bridges.answering import (
    accuracy,
    classes_of,
    correctness,
    held_answers,
    rightly,
    wanted_answers,
)
from compatkit.components.bridges.candidate import Candidate
from compatkit.components.bridges.ground import Ground
from compatkit.components.bridges.judging import ONE_CLASS, agreement, falls, largest, share
from compatkit.components.bridges.labelled import parted
from compatkit.components.bridges.passes import Passes
from compatkit.components.bridges.results import Step
from compatkit.components.bridges.rungs import LABELLED, TAUGHT, TRAINED, UNFITTED
from compatkit.components.bridges.training import Labelled
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, UsageError

Progress = Callable[[int, int, str], None]
CLOSED: Mapping[str, Callable[[Ground], Candidate]] = {
    "direct": closed.direct,
    "statistics": closed.statistics,
    "permutation": closed.by_permutation,
    "procrustes": closed.by_procrustes,
    "ridge": closed.by_ridge,
    "ridge-procrustes": closed.by_ridge_procrustes,
    "ridge3x3": closed.by_ridge3x3,
    "absorbed": absorbing.absorbed,
}


@attrs.define(eq=False)
class Climb:
    """One ladder between two parts.

    Attributes:
        ground: What all rungs stand on.
        labels: Labelled images of the extractor's domain, or None.
        test: Labelled images to measure on, or None; nothing is chosen by them.
        teacher: The head on its own extractor, statistics estimated on the images of the fit.
        wanted: What it answers on held-out images, int64 ``(n,)``.
    """

    ground: Ground
    labels: Split | None
    test: Split | None
    teacher: nn.Module = attrs.field(init=False)
    wanted: Tensor = attrs.field(init=False)
    _tests: Passes | None = attrs.field(init=False, default=None)
    _labelled: Labelled | None = attrs.field(init=False, default=None)
    _checks: tuple[Passes, Split] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        ground = self.ground
        for one in (self.labels, self.test):
            if one is not None:
                classes_of(one, ground.head)
        self.teacher = ground.reference()
        self.wanted = wanted_answers(ground.answers(self.teacher, ground.held))
        if self.test is not None:
            self._tests = ground.passes(self.test, None)
        if self.labels is not None:
            self._labelled, self._checks = parted(ground, self.labels)

    def climb(self, rungs: Sequence[str], until: float | None, progress: Progress | None) -> list[Step]:
        """Return what each rung gave; stops behind the first that fits and agrees on ``until`` of the images, if any.

        Raises:
            DataError: Features are not finite, or do not change.
            IncompatibleError: The features of the two extractors cannot be paired.
        """
        for _ in self.ground.features:  # made once, so that no rung's seconds are those of the extractors
            pass
        for _ in self.ground.paired:
            pass
        steps: list[Step] = []
        for number, rung in enumerate(rungs):
            if progress is not None:
                progress(number, len(rungs), rung)
            steps.append(self._step(rung, steps))
            if until is not None and _suffices(steps[-1], until):
                break
        if progress is not None:
            progress(len(rungs), len(rungs), steps[-1].rung)
        return steps

    def notes(self, steps: Sequence[Step]) -> list[str]:
        """Return what to know of the images and features, each a sentence."""
        found: list[str] = []
        if (most := largest(self.wanted)) >= ONE_CLASS:
            found.append(
                f"The head's own network gives {most:.0%} of the images one answer, so that agreement "
                "with it tells little. Take images of several classes, or measure with labels."
            )
        if any(one.explained is not None for one in steps):
            dead = self.ground.moments.dead()
            for count, whose in zip(dead, (self.ground.extractor, self.ground.own), strict=True):
                if count:
                    found.append(
                        f"{count} of the channels of {whose.reference} do not change on these images."
                    )
        return found

    def reference_accuracy(self) -> float | None:
        """Return the accuracy of the head's own network on the test images; None without any."""
        if self.test is None:
            return None
        logits = self.ground.answers(self.teacher, self.test)
        return accuracy(logits, self.test, self.ground.head).accuracy

    def _step(self, rung: str, before: Sequence[Step]) -> Step:
        self.ground.lent()
        began = time.perf_counter()
        try:
            made = self._built(rung)
        except IncompatibleError as error:
            return Step(rung, note=str(error))
        except DataError as error:
            self._check_features(rung)
            if rung not in TRAINED:
                raise
            return Step(rung, note=str(error))
        seconds = time.perf_counter() - began + self.ground.lent()
        self._check_features(rung)
        if rung == "infomax" and (note := self._fell(made, before)):
            return Step(rung, images=self._images(rung, made), seconds=seconds, note=note)
        return self._measured(rung, made, seconds)

    def _check_features(self, rung: str) -> None:
        """Refuse features that nothing can be fitted to, whichever rung meets them first."""
        if rung not in UNFITTED:
            self.ground.check()

    def _measured(self, rung: str, made: Candidate, seconds: float) -> Step:
        """Return a step with what its bridge gives on held-out, on test and on labelled images."""
        head, left, right, figure = self.ground.head, residual_of(made), None, None
        if self._checks is not None:
            right = rightly(self._on(made, *self._checks), self._checks[1], head)
        if self._tests is not None and self.test is not None:
            figure = accuracy(self._on(made, self._tests, self.test), self.test, head)
        return Step(
            rung,
            agreement(held_answers(made), self.wanted),
            None if left is None else 1 - left,
            self._images(rung, made),
            len(self.ground.fit) if made.estimates else 0,
            len(self._labelled.targets) if rung in LABELLED and self._labelled is not None else 0,
            seconds,
            figure,
            None if right is None or self._checks is None else correctness(right, self._checks[1]),
            right,
            candidate=made,
        )

    def _images(self, rung: str, made: Candidate) -> int:
        """Return how many images without labels a rung uses; statistics are estimated on those of the fit."""
        if rung in UNFITTED and not made.estimates:
            return 0
        return len(self.ground.fit if rung in ("statistics", "stitch", "infomax") else self.ground.pairs)

    def _fell(self, made: Candidate, before: Sequence[Step]) -> str:
        """Return why the training of an absorbed bridge is rolled back; empty where it is not."""
        climbed = (one.candidate for one in before if one.rung == "absorbed")
        first = next(climbed, None) or absorbing.absorbed(self.ground)
        was, now = (held_answers(one) == self.wanted for one in (first, made))
        if not falls(now, was):
            return ""
        return f"rolled back: agreement fell from {share(was).accuracy:.3f} to {share(now).accuracy:.3f}"

    def _on(self, made: Candidate, features: Passes, images: Split) -> Tensor:
        """Return the logits of a bridge; the rung ``direct`` may stand on other features than the rest."""
        return made.answers(features if made.ground is self.ground else made.ground.passes(images, None))

    def _built(self, rung: str) -> Candidate:
        if rung in CLOSED:
            return CLOSED[rung](self.ground)
        if rung == "stitch":
            return training.stitched(self.ground, self.teacher)
        if rung == "infomax":
            return training.informed(self.ground)
        if self._labelled is None:
            raise UsageError(f"The rung {rung} needs labels.")
        if rung == "stitch-labels":
            return training.stitched_to_labels(self.ground, self._labelled)
        return training.finetuned(self.ground, self._labelled)


def residual_of(made: Candidate) -> float | None:
    """Return the share of the target's variance that a fit left; None where nothing was fitted in closed form."""
    if made.fitted is not None:
        return made.fitted.training.get("residual")
    return made.method.get("residual")


def _suffices(step: Step, until: float) -> bool:
    """Tell whether a rung agrees so well that no further one is climbed: a share that chance gives too does not do."""
    found = step.agreed
    return (
        found is not None
        and step.rung not in TAUGHT
        and found.figure.accuracy >= until
        and found.says == "fit"
    )
