"""Build a bridge: try and judge every rung between two parts and choose one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.components.bridges.candidates import Candidate
from compatkit.components.bridges.inputs import BridgeInputs, BridgeRequest, Labeled, Passes, bridge_inputs
from compatkit.components.bridges.judging import (
    ONE_CLASS,
    accuracy,
    accuracy_judgment,
    agreement,
    classes_of,
    correct_mask,
    majority_share,
    proportion,
    reference_predictions,
    significantly_fewer,
)
from compatkit.components.bridges.ladder import Bridge, RungResult, choose, chosen_rungs, reason
from compatkit.components.bridges.publishing import HEAD, assemble, outcome
from compatkit.components.bridges.rungs import RungFit, RungInputs
from compatkit.components.bridges.splits import duplicates_note, split_labeled
from compatkit.contracts.manifest import Parent
from compatkit.contracts.report import Report
from compatkit.data.split import Split
from compatkit.errors import DataError, IncompatibleError, type_of
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Progress
from compatkit.plugins.discovery import find


def bridge_pair(
    extractor: Component,
    head: Component,
    own: Callable[[], Component],
    report: Report,
    request: BridgeRequest,
) -> Bridge:
    """Try the rungs of the ladder between two parts and choose one.

    Args:
        extractor: Extractor of the pair.
        head: Head of another network.
        own: Returns the extractor that the head was trained with.
        report: Check of the two contracts.
        request: Images, rungs and settings.

    Raises:
        IncompatibleError: The parts cannot be wired, or no rung could be built.
    """
    if report.wiring == "refused":
        raise IncompatibleError(str(report), subject=report)
    rungs = chosen_rungs(request.rungs, request.labels is not None)
    base = bridge_inputs(extractor, head, own(), request)
    ladder = Ladder(base, request.labels, request.test)
    steps = [recorded_step(result, base) for result in ladder.climb(rungs, request.until, request.progress)]
    chosen = choose(steps)
    not_climbed = tuple(rungs[len(steps) :])
    recombination = assemble(chosen, report)
    metadata = _metadata(request, base, ladder)
    notes = [
        note for note in (reason(chosen, steps), duplicates_note(request.data), *ladder.notes(steps)) if note
    ]
    if not_climbed:
        notes.append(
            f"Not tried, because {steps[-1].rung} fits with an agreement of at least {request.until}: "
            f"{', '.join(not_climbed)}."
        )
    base.forget()
    return Bridge(
        extractor.reference,
        head.reference,
        tuple(steps),
        chosen.rung,
        recombination,
        metadata,
        tuple(notes),
        not_climbed,
    )


def _metadata(request: BridgeRequest, base: BridgeInputs, ladder: Ladder) -> dict[str, Any]:
    """Return the metadata of a bridge (``Bridge.details``), as JSON values."""
    return {
        "data": base.fit_facts,
        "paired_on": {
            "on": request.on,
            "name": base.pairs.name,
            "digest": base.pairs.digest,
            "images": len(base.pairs),
        },
        "held_out": len(base.held_out),
        "largest": majority_share(ladder.wanted),
        "until": request.until,
        "seed": request.seed,
        "reference": ladder.reference_accuracy(),
    }


def recorded_step(step: RungResult, base: BridgeInputs) -> RungResult:
    """Return a result whose adapter records its judgment.

    Args:
        step: Result of a rung.
        base: Images and features of both parts.
    """
    candidate = step.candidate
    if candidate is None or candidate.fitted is None:
        return step
    adapter = candidate.fitted
    parents = (*adapter.parents, Parent(HEAD, base.head.digest))
    training = {**adapter.training, **outcome(step)}
    fitted = attrs.evolve(adapter, parents=parents, training=training)
    return attrs.evolve(step, candidate=attrs.evolve(candidate, fitted=fitted))


@attrs.define(eq=False)
class Ladder:
    """A ladder between two parts.

    Attributes:
        inputs: Images and features shared by all rungs.
        labels: Labeled images of the extractor's domain, or None.
        test: Labeled images for measurement only, or None.
        teacher: The head on its own extractor, with statistics estimated on the fitting images.
        wanted: Predictions of the teacher on held-out images, int64 ``(n,)``.
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
            rungs: Rungs in the order of the ladder.
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
            steps.append(self._step(rung))
            if until is not None and _suffices(steps[-1], until):
                break
        if progress is not None:
            progress(len(rungs), len(rungs), steps[-1].rung)
        return steps

    def notes(self, steps: Sequence[RungResult]) -> list[str]:
        """Return remarks on images and features, one sentence each."""
        notes: list[str] = []
        if (top_share := majority_share(self.wanted)) >= ONE_CLASS:
            notes.append(
                f"The head's own network predicts one class for {top_share:.0%} of the images, so agreement with it "
                "means little. Use images of several classes, or labels."
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

    def _step(self, rung: str) -> RungResult:
        rung_inputs, before = RungInputs(self.inputs, self._labeled, self.teacher), self.inputs.moment_seconds
        began, note = time.perf_counter(), ""
        try:
            fit = self._fit(rung, rung_inputs)
            candidate = Candidate.of(self.inputs, rung, fit)
        except (IncompatibleError, DataError) as error:
            fit, candidate, note = RungFit(), None, str(error)
        seconds = time.perf_counter() - began + (before if "moments" in rung_inputs.reads else 0.0)
        if "pairs" in rung_inputs.reads:  # raise for constant features, whichever rung needs them first
            _ = self.inputs.moments
        if candidate is None:
            return RungResult(rung, note=note)
        if fit.start is not None and (
            note := self._rollback_reason(candidate, Candidate.of(self.inputs, rung, fit.start))
        ):
            return RungResult(rung, images=self._images(rung_inputs, candidate), seconds=seconds, note=note)
        return self._measured(rung, rung_inputs, candidate, seconds)

    def _fit(self, rung: str, rung_inputs: RungInputs) -> RungFit:
        # The plugin may refuse a pair; only other errors are reported as failures of the plugin.
        offer, refusal, fit = find("rungs", rung), None, None
        with offer.called({}, "fitting", "its fit failed", "Draw from a generator seeded with inputs.seed."):
            try:
                fit = offer.factory(rung_inputs)
            except (IncompatibleError, DataError) as error:
                refusal = error
        if refusal is not None:
            raise refusal
        if not isinstance(fit, RungFit):
            raise offer.owner.error(f"it returned {type_of(fit)}. Return a RungFit.")
        return fit

    def _measured(
        self, rung: str, rung_inputs: RungInputs, candidate: Candidate, seconds: float
    ) -> RungResult:
        """Return the result of a bridge on held-out, test and labeled images."""
        head, residual, right, figure = self.inputs.head, candidate.residual, None, None
        if self._checks is not None:
            right = correct_mask(self._logits_on(candidate, *self._checks), self._checks[1], head)
        if self._tests is not None and self.test is not None:
            figure = accuracy(self._logits_on(candidate, self._tests, self.test), self.test, head)
        return RungResult(
            rung,
            agreement(candidate.held_out_predictions(), self.wanted),
            None if residual is None else 1 - residual,
            self._images(rung_inputs, candidate),
            len(self.inputs.fit) if candidate.estimates else 0,
            len(self._labeled.targets) if "labels" in rung_inputs.reads and self._labeled is not None else 0,
            seconds,
            figure,
            None if right is None or self._checks is None else accuracy_judgment(right, self._checks[1]),
            right,
            "logits" in rung_inputs.reads,
            candidate=candidate,
        )

    def _images(self, rung_inputs: RungInputs, candidate: Candidate) -> int:
        """Return the number of unlabeled images that a rung uses, including those for statistics."""
        if "pairs" in rung_inputs.reads and "features" not in rung_inputs.reads:
            return len(self.inputs.pairs)
        return len(self.inputs.fit) if rung_inputs.reads or candidate.estimates else 0

    def _rollback_reason(self, candidate: Candidate, start: Candidate) -> str:
        """Return why a training is rolled back to its start, or empty."""
        before_correct, after_correct = (
            bridge.held_out_predictions() == self.wanted for bridge in (start, candidate)
        )
        if not significantly_fewer(after_correct, before_correct):
            return ""
        before, after = proportion(before_correct).accuracy, proportion(after_correct).accuracy
        return f"rolled back: agreement fell from {before:.3f} to {after:.3f}"

    def _logits_on(self, candidate: Candidate, features: Passes, images: Split) -> Tensor:
        """Return the logits of a bridge; the rung ``direct`` may use other features than the rest."""
        return candidate.answers(
            features if candidate.inputs is self.inputs else candidate.inputs.passes(images, None)
        )


def _suffices(step: RungResult, until: float) -> bool:
    """Return whether a rung agrees well enough, beyond chance, to stop."""
    agreed = step.agreed
    return (
        agreed is not None and not step.taught and agreed.figure.accuracy >= until and agreed.verdict == "fit"
    )
