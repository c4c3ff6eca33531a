"""Climbing the ladder: rung after rung, each judged by its agreement with the head's own network on held-out images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from compatkit.bridges import absorbing, closed, training
from compatkit.bridges.answering import ONE_CLASS, Reference, accuracy, classes_of, falls, share
from compatkit.bridges.candidate import Candidate
from compatkit.bridges.ground import Ground
from compatkit.bridges.passes import Passes
from compatkit.bridges.results import Step
from compatkit.bridges.rungs import LABELLED, TAUGHT
from compatkit.bridges.training import Labelled
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
CHECKED = 5
"""One labelled image of so many is not trained on, to see whether labels helped."""


@attrs.define(eq=False)
class Climb:
    """One ladder between two parts.

    Attributes:
        ground: What all rungs stand on.
        labels: Labelled images of the extractor's domain, or None.
        test: Labelled images to measure on, or None; nothing is chosen by them.
        teacher: The head on its own extractor, statistics estimated on the images of the fit.
        wanted: What it answers on held-out images.
    """

    ground: Ground
    labels: Split | None
    test: Split | None
    teacher: nn.Module = attrs.field(init=False)
    wanted: Reference = attrs.field(init=False)
    _tests: Passes | None = attrs.field(init=False, default=None)
    _labelled: Labelled | None = attrs.field(init=False, default=None)
    _checks: tuple[Passes, Split] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        ground = self.ground
        for one in (self.labels, self.test):
            if one is not None:
                classes_of(one, ground.head)
        self.teacher = ground.reference()
        self.wanted = Reference.of(ground.answers(self.teacher, ground.held))
        if self.test is not None:
            self._tests = ground.passes(self.test, None)
        if self.labels is not None:
            self._labelled, self._checks = _labelled(ground, self.labels)

    def climb(self, rungs: Sequence[str], until: float | None, progress: Progress | None) -> list[Step]:
        """Return what each rung gave; stops behind the first that agrees on ``until`` of the images, if any.

        Raises:
            DataError: Features are not finite or do not change, or are too large for memory.
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
            found = steps[-1].agreement
            if until is not None and found is not None and found.accuracy >= until and rung not in TAUGHT:
                break
        if progress is not None:
            progress(len(rungs), len(rungs), steps[-1].rung)
        return steps

    def notes(self, steps: Sequence[Step]) -> list[str]:
        """Return what to know of the images and features, each a sentence."""
        found: list[str] = []
        if self.wanted.largest >= ONE_CLASS:
            found.append(
                f"The head's own network gives {self.wanted.largest:.0%} of the images one answer, so that agreement "
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
        began = time.perf_counter()
        try:
            made = self._built(rung)
        except IncompatibleError as error:
            return Step(rung, note=str(error))
        seconds = time.perf_counter() - began
        agreeing, note = self.wanted.agreeing(made, self.ground), ""
        if rung == "infomax":
            climbed = (one.candidate for one in before if one.rung == "absorbed")
            was = self.wanted.agreeing(next(climbed, None) or absorbing.absorbed(self.ground), self.ground)
            if falls(agreeing, was):
                note = f"rolled back: agreement fell from {share(was).accuracy:.3f} to {share(agreeing).accuracy:.3f}"
                return Step(rung, images=len(self.ground.fit), seconds=seconds, note=note)
        tests, checks = self._tests, self._checks
        return Step(
            rung,
            share(agreeing),
            None if (left := residual_of(made)) is None else 1 - left,
            0 if rung == "direct" else len(self.ground.fit),
            len(self._labelled.targets) if rung in LABELLED and self._labelled is not None else 0,
            seconds,
            None
            if tests is None or self.test is None
            else accuracy(self._on(made, tests, self.test), self.test, self.ground.head),
            None
            if checks is None
            else accuracy(self._on(made, checks[0], checks[1]), checks[1], self.ground.head),
            note,
            made,
        )

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


def choose(steps: Sequence[Step]) -> Step:
    """Return the step to take: the highest agreement, the cheaper of equals.

    A rung that was trained to agree is taken only where there is no other: it comes to share the mistakes of the head's
    own network on these images. A rung that was trained with labels is taken where it is right more often than the best
    other on labelled images that neither was fitted to: what it learnt from them, the head's own network may not know.

    Raises:
        IncompatibleError: Every rung was left out; says why.
    """
    there = [one for one in steps if one.agreement is not None]
    if not there:
        told = "\n".join(f"{one.rung}: {one.note}" for one in steps)
        raise IncompatibleError(f"No rung could be climbed:\n{told}")

    def agreement(one: Step) -> float:
        return one.agreement.accuracy if one.agreement is not None else 0.0

    def checked(one: Step) -> float:
        return one.checked.accuracy if one.checked is not None else 0.0

    judged = [one for one in there if one.rung not in LABELLED | TAUGHT]
    best = max(judged or there, key=agreement)
    learnt = max((one for one in there if one.rung in LABELLED), key=checked, default=best)
    return learnt if checked(learnt) > checked(best) else best


def residual_of(made: Candidate) -> float | None:
    """Return the share of the target's variance that a fit left; None where nothing was fitted in closed form."""
    if made.fitted is not None:
        return made.fitted.training.get("residual")
    return made.method.get("residual")


def _labelled(ground: Ground, labels: Split) -> tuple[Labelled, tuple[Passes, Split]]:
    """Return labelled images to train on, and others to see what it gave.

    Raises:
        DataError: Fewer than ten, or classes that the head does not know.
    """
    outputs = dict(classes_of(labels, ground.head))
    missing = [
        name for place, name in enumerate(labels.classes) if place not in outputs and labels.counts[place]
    ]
    if missing:
        raise DataError(
            f"{labels.name} has images of {', '.join(missing)}, which {ground.head.reference} does not tell apart. "
            "Leave these images out.",
            subject=missing,
        )
    if len(labels) < 10:
        raise DataError(
            f"{labels.name} has {len(labels)} labelled images; training a bridge takes 10 at least."
        )
    order = np.random.default_rng(ground.seed).permutation(len(labels))
    apart = len(labels) // CHECKED
    used, held = labels.take(order[apart:]), labels.take(order[:apart])
    targets = torch.tensor([outputs[int(one)] for one in used.labels])
    return Labelled(ground.passes(used, None), targets), (ground.passes(held, None), held)
