"""Build bridges: try and judge every rung between two parts and choose one; for one pair or many."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.components.bridges import absorbing, closed, training
from compatkit.components.bridges.closed import Candidate
from compatkit.components.bridges.dividing import duplicates_note, split_labeled
from compatkit.components.bridges.inputs import BridgeInputs, BridgeRequest, Passes, bridge_inputs
from compatkit.components.bridges.judging import (
    NOT_FINITE,
    ONE_CLASS,
    accuracy,
    agreement,
    classes_of,
    correct_mask,
    correctness,
    largest,
    measurable,
    reference_predictions,
    share,
    significantly_fewer,
)
from compatkit.components.bridges.ladder import (
    ADAPTERS,
    BEST,
    LABELED,
    TAUGHT,
    TRAINED,
    UNFITTED,
    Bridge,
    RungResult,
    choose,
    chosen_rungs,
    reason,
)
from compatkit.components.bridges.publishing import HEAD, assemble, outcome
from compatkit.components.bridges.training import Labeled
from compatkit.components.loading import PartLoader, load
from compatkit.components.pairs import check_pair
from compatkit.components.projecting import own_extractor
from compatkit.contracts.check import check
from compatkit.contracts.manifest import Parent
from compatkit.contracts.report import Report
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, UsageError, type_of
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Progress
from compatkit.registry.names import Reference
from compatkit.registry.store import Store


def bridge(store: Store, extractor: str, head: str, request: BridgeRequest) -> Bridge:
    """Bridge a head to an extractor; see ``Registry.bridge``."""
    parts = PartLoader(store)
    left, right = (parts.component(store.resolve(reference)) for reference in (extractor, head))
    report = check_pair(store, left, right)
    if report.wiring == "refused":
        raise IncompatibleError(str(report), subject=report)
    return bridge_pair(store, left, right, report, request)


def bridge_pair(
    store: Store, extractor: Component, head: Component, report: Report, request: BridgeRequest
) -> Bridge:
    """Try the rungs of the ladder between two parts and choose one.

    Args:
        store: The registry's files.
        extractor: The extractor.
        head: The head, of another network.
        report: Check of the two contracts.
        request: Images, rungs and settings.
    """
    rungs = chosen_rungs(request.rungs, request.labels is not None)
    base = bridge_inputs(extractor, head, own_extractor(store, head), request)
    ladder = Ladder(base, request.labels, request.test)
    steps = [_recorded(result, base) for result in ladder.climb(rungs, request.until, request.progress)]
    chosen = choose(steps)
    not_climbed = tuple(rungs[len(steps) :])
    recombination = assemble(chosen, report)
    facts = _facts(request, base, ladder)
    notes = [
        note for note in (reason(chosen, steps), duplicates_note(request.data), *ladder.notes(steps)) if note
    ]
    if not_climbed:
        notes.append(
            f"Not tried, as {steps[-1].rung} fits and agrees on {request.until} at least: {', '.join(not_climbed)}."
        )
    return Bridge(
        extractor.reference,
        head.reference,
        tuple(steps),
        chosen.rung,
        recombination,
        facts,
        tuple(notes),
        not_climbed,
    )


def between(
    store: Store,
    extractors: Sequence[Reference],
    heads: Sequence[Reference],
    data: Mapping[str, Split],
    rung: str,
    *,
    tests: Mapping[str, Split],
    max_images: int,
    seed: int,
    progress: Progress | None,
) -> dict[tuple[str, str], Bridge]:
    """Return a bridge for each pair; see ``Registry.bridges.between``."""
    rungs = _rungs_between(rung)
    if not isinstance(data, Mapping):
        raise UsageError(f"data= expects a mapping from extractor name to images, got {type_of(data)}.")
    pairs = [(left, right) for left in extractors for right in heads]
    bridges: dict[tuple[str, str], Bridge] = {}
    for number, (left, right) in enumerate(pairs):
        if progress is not None:
            progress(number, len(pairs), f"{left.name} + {right.name}")
        extractor_part, head_part = load(store, left), load(store, right)
        if head_part.is_own(extractor_part):
            continue
        images_of = data.get(extractor_part.reference, data.get(left.name))
        if images_of is None:
            raise DataError(
                f"{left.name} has no images to fit a bridge on; images were given for {', '.join(data)}."
            )
        report = check(extractor_part.manifest, head_part.manifest)
        test, note = _tests_of(head_part, tests.get(extractor_part.reference, tests.get(left.name)))
        request = BridgeRequest(
            data=images_of, test=test, rungs=rungs, until=None, max_images=max_images, seed=seed
        )
        try:
            if report.wiring == "refused":
                raise IncompatibleError("they cannot be wired")
            bridge = bridge_pair(store, extractor_part, head_part, report, request)
            bridges[extractor_part.reference, head_part.reference] = attrs.evolve(
                bridge, notes=(*bridge.notes, *note)
            )
        except (IncompatibleError, DataError) as error:
            of_images = isinstance(error, DataError) and error.subject is None
            if of_images:
                raise
            warnings.warn(
                f"{extractor_part.reference} with {head_part.reference} has no bridge by {rung}: {error}",
                stacklevel=4,
            )
    return bridges


def _facts(request: BridgeRequest, base: BridgeInputs, ladder: Ladder) -> dict[str, Any]:
    """Return the facts about a ladder, as JSON values."""
    return {
        "data": {"name": base.fit.name, "digest": base.fit.digest, "images": len(base.fit)},
        "paired_on": {
            "on": request.on,
            "name": base.pairs.name,
            "digest": base.pairs.digest,
            "images": len(base.pairs),
        },
        "held_out": len(base.held_out),
        "largest": largest(ladder.wanted),
        "until": request.until,
        "seed": request.seed,
        "reference": ladder.reference_accuracy(),
    }


def _rungs_between(rung: str) -> list[str]:
    """Return the rungs to try for a matrix.

    Raises:
        UsageError: The rung is unknown, or inserts no adapter.
    """
    if rung not in (*ADAPTERS, BEST):
        chosen_rungs([rung], True)  # raises for an unknown name
        raise UsageError(
            f"The rung {rung} inserts no adapter. Use one of {', '.join(ADAPTERS)}, or {BEST} for the one in closed "
            "form with the highest agreement.",
            subject=rung,
        )
    return ["statistics", *(name for name in ADAPTERS if name not in TAUGHT)] if rung == BEST else [rung]


def _recorded(step: RungResult, base: BridgeInputs) -> RungResult:
    """Return a result whose adapter records its judgement."""
    candidate = step.candidate
    if candidate is None or candidate.fitted is None:
        return step
    adapter = candidate.fitted
    parents = (*adapter.parents, Parent(HEAD, base.head.digest))
    facts = {**adapter.training, **outcome(step)}
    fitted = attrs.evolve(adapter, parents=parents, training=facts)
    return attrs.evolve(step, candidate=attrs.evolve(candidate, fitted=fitted))


def _tests_of(head: Component, test: Split | None) -> tuple[Split | None, tuple[str, ...]]:
    """Return the test images if the head knows one of their classes; else None and a note."""
    if test is None or measurable(test, head):
        return test, ()
    return None, (
        f"No accuracy is measured: {test.name} holds no image of a class that {head.reference} knows.",
    )


CLOSED: Mapping[str, Callable[[BridgeInputs], Candidate]] = {
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
class Ladder:
    """A ladder between two parts.

    Attributes:
        inputs: Images and features shared by all rungs.
        labels: Labeled images of the extractor's domain, or None.
        test: Labeled images for measurement only, or None.
        teacher: The head on its own extractor, with statistics estimated on the fitting images.
        wanted: Its predictions on held-out images, int64 ``(n,)``.
    """

    inputs: BridgeInputs
    labels: Split | None
    test: Split | None
    teacher: nn.Module = attrs.field(init=False)
    wanted: Tensor = attrs.field(init=False)
    _tests: Passes | None = attrs.field(init=False, default=None)
    _labeled: Labeled | None = attrs.field(init=False, default=None)
    _checks: tuple[Passes, Split] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        inputs = self.inputs
        for images in (self.labels, self.test):
            if images is not None:
                classes_of(images, inputs.head)
        self.teacher = inputs.reference()
        self.wanted = reference_predictions(inputs.answers(self.teacher, inputs.held_out))
        if self.test is not None:
            self._tests = inputs.passes(self.test, None)
        if self.labels is not None:
            used, targets, checks = split_labeled(self.labels, inputs.head, inputs.held_out, inputs.seed)
            self._labeled = Labeled(inputs.passes(used, None), torch.tensor(targets))
            self._checks = inputs.passes(checks, None), checks

    def climb(self, rungs: Sequence[str], until: float | None, progress: Progress | None) -> list[RungResult]:
        """Return the results of the rungs; stop after the first that fits with an agreement of at least ``until``.

        Args:
            rungs: In the order of the ladder.
            until: Agreement from which no further rung is tried; None tries all.
            progress: Called with each rung.

        Raises:
            DataError: Features are not finite or constant.
            IncompatibleError: The features of the two extractors cannot be paired.
        """
        for _ in self.inputs.features:  # computed once here, so that no rung's time includes the extractors
            pass
        for _ in self.inputs.paired:
            pass
        steps: list[RungResult] = []
        for number, rung in enumerate(rungs):
            if progress is not None:
                progress(number, len(rungs), rung)
            steps.append(self._step(rung, steps))
            if until is not None and _suffices(steps[-1], until):
                break
        if progress is not None:
            progress(len(rungs), len(rungs), steps[-1].rung)
        return steps

    def notes(self, steps: Sequence[RungResult]) -> list[str]:
        """Return remarks on images and features, one sentence each."""
        notes: list[str] = []
        if (top_share := largest(self.wanted)) >= ONE_CLASS:
            notes.append(
                f"The head's own network gives {top_share:.0%} of the images one answer, so that agreement "
                "with it tells little. Take images of several classes, or measure with labels."
            )
        if any(result.explained is not None for result in steps):
            dead = self.inputs.moments.dead()
            for count, part in zip(dead, (self.inputs.extractor, self.inputs.own), strict=True):
                if count:
                    notes.append(
                        f"{count} of the channels of {part.reference} do not change on these images."
                    )
        return notes

    def reference_accuracy(self) -> float | None:
        """Return the accuracy of the head's own network on the test images, or None."""
        if self.test is None:
            return None
        logits = self.inputs.answers(self.teacher, self.test)
        return accuracy(logits, self.test, self.inputs.head).accuracy

    def _step(self, rung: str, before: Sequence[RungResult]) -> RungResult:
        self.inputs.borrowed_seconds()
        began = time.perf_counter()
        try:
            candidate = self._built(rung)
        except IncompatibleError as error:
            return RungResult(rung, note=str(error))
        except DataError as error:
            self._check_features(rung)
            if rung not in TRAINED:
                raise
            return RungResult(rung, note=str(error))
        seconds = time.perf_counter() - began + self.inputs.borrowed_seconds()
        self._check_features(rung)
        if rung == "infomax" and (note := self._rollback_reason(candidate, before)):
            return RungResult(rung, images=self._images(rung, candidate), seconds=seconds, note=note)
        return self._measured(rung, candidate, seconds)

    def _check_features(self, rung: str) -> None:
        """Raise for features that nothing can be fitted to, whichever rung needs them first."""
        if rung not in UNFITTED:
            self.inputs.check()

    def _measured(self, rung: str, candidate: Candidate, seconds: float) -> RungResult:
        """Return the result of a bridge on held-out, test and labeled images."""
        head, residual, right, figure = self.inputs.head, candidate.residual, None, None
        if self._checks is not None:
            right = correct_mask(self._logits_on(candidate, *self._checks), self._checks[1], head)
        if self._tests is not None and self.test is not None:
            figure = accuracy(self._logits_on(candidate, self._tests, self.test), self.test, head)
        return RungResult(
            rung,
            agreement(held_out_predictions(candidate), self.wanted),
            None if residual is None else 1 - residual,
            self._images(rung, candidate),
            len(self.inputs.fit) if candidate.estimates else 0,
            len(self._labeled.targets) if rung in LABELED and self._labeled is not None else 0,
            seconds,
            figure,
            None if right is None or self._checks is None else correctness(right, self._checks[1]),
            right,
            candidate=candidate,
        )

    def _images(self, rung: str, candidate: Candidate) -> int:
        """Return the number of unlabeled images that a rung uses, including those for statistics."""
        if rung in UNFITTED and not candidate.estimates:
            return 0
        return len(self.inputs.fit if rung in ("statistics", "stitch", "infomax") else self.inputs.pairs)

    def _rollback_reason(self, candidate: Candidate, steps: Sequence[RungResult]) -> str:
        """Return why the training of an absorbed bridge is rolled back, or empty."""
        climbed = (step.candidate for step in steps if step.rung == "absorbed")
        first = next(climbed, None) or absorbing.absorbed(self.inputs)
        before_correct, after_correct = (
            held_out_predictions(bridge) == self.wanted for bridge in (first, candidate)
        )
        if not significantly_fewer(after_correct, before_correct):
            return ""
        before, after = share(before_correct).accuracy, share(after_correct).accuracy
        return f"rolled back: agreement fell from {before:.3f} to {after:.3f}"

    def _logits_on(self, candidate: Candidate, features: Passes, images: Split) -> Tensor:
        """Return the logits of a bridge; the rung ``direct`` may use other features than the rest."""
        return candidate.answers(
            features if candidate.inputs is self.inputs else candidate.inputs.passes(images, None)
        )

    def _built(self, rung: str) -> Candidate:
        if rung in CLOSED:
            return CLOSED[rung](self.inputs)
        if rung == "stitch":
            return training.stitched(self.inputs, self.teacher)
        if rung == "infomax":
            return training.informed(self.inputs)
        if self._labeled is None:
            raise UsageError(f"The rung {rung} needs labels; pass labels=.")
        if rung == "stitch-labels":
            return training.stitched_to_labels(self.inputs, self._labeled)
        return training.finetuned(self.inputs, self._labeled)


def _suffices(step: RungResult, until: float) -> bool:
    """Return whether a rung agrees well enough, beyond chance, to stop."""
    agreed = step.agreed
    return (
        agreed is not None
        and step.rung not in TAUGHT
        and agreed.figure.accuracy >= until
        and agreed.says == "fit"
    )


def held_out_predictions(candidate: Candidate) -> Tensor:
    """Return the predictions of a bridge on held-out images, int64 ``(n,)``.

    Returns:
        Class numbers; ``NOT_FINITE`` for images whose logits are not finite.
    """
    logits = candidate.answers(candidate.inputs.held_out_features)
    return torch.where(torch.isfinite(logits).all(dim=1), logits.argmax(dim=1), NOT_FINITE)
