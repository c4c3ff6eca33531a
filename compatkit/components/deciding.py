"""Decide policies: measure a candidate with the released parts that it must work with, or use evidence.

Figures are those of the matrix, on the policy's images and under its batch-norm policy; they are recorded as evidence
whatever they are. For a version that is copied in, with a fixed number, evidence decides, whoever measured it: of
several figures for one pair under the same conditions the lowest counts, and for a bound the highest, so that bringing
a better figure gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from compatkit.components.images import PolicyData, policy_images
from compatkit.components.loading import PartLoader
from compatkit.components.outcomes import Answer, PolicyOutcome, refusal
from compatkit.contracts.check import Report, check
from compatkit.contracts.evidence import METRIC, METRIC_VERSION, Cell
from compatkit.contracts.manifest import trained_with
from compatkit.data.dataset import Split
from compatkit.errors import (
    FormatError,
    NotFound,
    PolicyBroken,
    PolicyUndecided,
    UsageError,
)
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Progress, is_kept, key_of
from compatkit.evaluation.matrix import measure
from compatkit.evaluation.prospect import is_normalized, wiring_obstacle
from compatkit.evaluation.records import Cells, keep
from compatkit.registry.copy.admission import Deciding
from compatkit.registry.evidence import StoredResult
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.publish import Decide
from compatkit.registry.required_partners import Partner, Question
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

CANDIDATE = "candidate"
"""Placeholder for a version, in tables and in the evidence of a candidate."""
SHOWN = 4
"""Most pairs listed in a message."""
SLACK = 1e-9
"""Tolerance for rounding of shares of up to 2^31 images: exactly the bound minus the tolerance passes."""


def conditions_of(policy: Policy) -> Conditions:
    """Return the conditions that a policy measures under."""
    return Conditions(policy.bn_policy, policy.batch_size, policy.seed)


Pair = tuple[str, Component, Component, Component | None]
"""Partner, extractor, head, and the extractor that gives the upper bound."""


@attrs.define(eq=False)
class Decider:
    """Decides policies for one candidate; measurements are cached.

    Attributes:
        store: Registry of the partners.
        candidate: The part.
        data: Available images.
        kin: Unreleased parts by manifest digest, such as a new head's own extractor.
        version: Requested version number.
        progress: Called with done, total and what is being done.
        recalls: Whether to use evidence, as for copied versions.
        measures: Whether to measure what is missing.
    """

    store: Store
    candidate: Component
    data: PolicyData = ()
    kin: Mapping[str, Component] = attrs.field(factory=dict)
    version: str | None = None
    progress: Progress | None = None
    recalls: bool = attrs.field(default=False, kw_only=True)
    measures: bool = attrs.field(default=True, kw_only=True)
    _cells: dict[tuple[str, str], Cell] = attrs.field(init=False, factory=dict)
    _kept: Cells = attrs.field(init=False, factory=Cells)
    _parts: PartLoader = attrs.field(
        init=False, default=attrs.Factory(lambda self: PartLoader(self.store, self.recalls), takes_self=True)
    )

    def __call__(self, question: Question) -> PolicyOutcome:
        """Decide, and raise if the candidate fails.

        Raises:
            PolicyBroken: A partner fails; carries the outcome.
            PolicyDataMissing: The policy's images are not available.
            UsageError: The policy's metric is not supported by this compatkit.
        """
        outcome = self.answer(question)
        if not outcome.passed:
            raise PolicyBroken(refusal(outcome), subject=outcome)
        return outcome

    def answer(self, question: Question) -> PolicyOutcome:
        """Measure what the policy requires and return the outcome."""
        policy = question.policy
        outcome = PolicyOutcome(question)
        if policy is not None and policy.data is not None and question.is_open:
            outcome = self._measured(question, policy, policy.data)
        return self._numbered(outcome)

    def _numbered(self, outcome: PolicyOutcome) -> PolicyOutcome:
        """Add the version numbers open to the candidate."""
        question, policy = outcome.question, outcome.question.policy
        place = question.name, self.candidate.manifest
        wide = policy is not None and policy.across_major
        offered = None if wide and not outcome.passed else str(self.store.least_version(*place, major=True))
        if not outcome.passed:
            return attrs.evolve(outcome, offered=offered)
        least = self.version or str(self.store.least_version(*place, measured=question.is_open))
        return attrs.evolve(outcome, allowed=least, offered=offered)

    def _measured(self, question: Question, policy: Policy, wanted: Images) -> PolicyOutcome:
        if (policy.metric, policy.metric_version) != (METRIC, METRIC_VERSION):
            raise UsageError(
                f"{question.name}: the policy uses the metric {policy.metric} {policy.metric_version}, but this "
                f"compatkit measures {METRIC} {METRIC_VERSION}, which gives other figures. Set the policy again, or "
                "publish with a compatkit that measures the policy's metric.",
                subject=policy,
            )
        pairs = [self._pair(item) for item in question.partners]
        why = [wiring_obstacle(_report(extractor, head)) for _, extractor, head, _ in pairs]
        if any(why):  # no measurement if the contracts do not fit
            others = "not measured: the others do not fit"
            answers = [
                Answer(partner, left.reference, head.reference, reason=item or others)
                for (partner, left, head, _), item in zip(pairs, why, strict=True)
            ]
            return PolicyOutcome(question, tuple(answers), self._matrix(pairs, policy))
        self._provide(pairs, policy, wanted)
        answers = [self._judged(*pair, policy.tolerance) for pair in pairs]
        return PolicyOutcome(question, tuple(answers), self._matrix(pairs, policy))

    def _provide(self, pairs: Sequence[Pair], policy: Policy, wanted: Images) -> None:
        """Provide figures of all pairs and their bounds.

        Raises:
            PolicyUndecided: Figures are missing, and measuring is not allowed.
        """
        if self.recalls:
            digest = wanted.digest if policy.cap is None else self._images(policy, wanted).digest
            for _, extractor, head, own in pairs:
                if own is not None:
                    self._recall(own, head, policy, digest, highest=True)
                if own is None or own.function != extractor.function:
                    self._recall(extractor, head, policy, digest, highest=False)
        lacking = [
            (left, head)
            for _, extractor, head, own in pairs
            for left in (own, extractor)
            if left is not None and (left.function, head.function) not in self._cells
        ]
        if lacking and not self.measures:
            raise PolicyUndecided(self._undecided(policy, lacking), subject=policy)
        if lacking:
            self._measure(lacking, self._images(policy, wanted), policy)

    def _images(self, policy: Policy, wanted: Images) -> Split:
        """Return the policy's images, or the sample of them."""
        split = policy_images(wanted, self.data)
        if policy.cap is not None and policy.cap < len(split):
            split = split.subset(policy.cap, policy.seed)
        return split

    def _pair(self, partner: Partner) -> Pair:
        other = self._parts.component(partner.reference)
        own = None if partner.bound is None else self._by_digest(partner.bound)
        if self.candidate.kind == "head":
            return str(partner.reference), other, self.candidate, own
        return str(partner.reference), self.candidate, other, own

    def _by_digest(self, digest: str) -> Component | None:
        """Return a component from its digest, under one of its names here; None if it has none."""
        known = self.kin.get(digest) or self._parts.of_digest(digest)
        if known is not None:
            return known
        names = [name for name, root in self.store.index.roots() if root == digest]
        try:
            reference = self.store.resolve(Reference(min(names), digest=digest)) if names else None
            return None if reference is None else self._parts.component(reference)
        except NotFound:
            return None

    def _measure(self, pairs: Iterable[tuple[Component, Component]], split: Split, policy: Policy) -> None:
        """Measure pairs, each extractor once over the images, and record the figures."""
        wanted: dict[str, tuple[Component, dict[str, Component]]] = {}
        for left, head in pairs:
            wanted.setdefault(left.function, (left, {}))[1].setdefault(head.function, head)
        for left, columns in wanted.values():
            heads, tests = list(columns.values()), {left.reference: split}
            cells = measure([left], heads, tests, conditions_of(policy), progress=self.progress)
            keep(self.store, [left, *heads], cells)
            self._cells |= {
                (left.function, head.function): cell for head, cell in zip(heads, cells, strict=True)
            }

    def _recall(
        self, extractor: Component, head: Component, policy: Policy, digest: str, *, highest: bool
    ) -> None:
        """Use the recorded figure that counts for a pair, if there is one under exactly the policy's conditions."""
        if (extractor.function, head.function) in self._cells:
            return
        cells: list[Cell] = []
        for result in self.store.evidence.results([extractor.function], [head.function]):
            try:
                if self._answers(result, extractor, head, policy, digest):
                    cells.append(self._kept.of(result, extractor.reference, head.reference))
            except FormatError:
                continue  # a damaged figure does not count
        cells = [cell for cell in cells if cell.restricted is not None]
        if cells:
            ordered = sorted(cells, key=lambda cell: cell.restricted.accuracy if cell.restricted else 0.0)
            self._cells[extractor.function, head.function] = ordered[-1 if highest else 0]

    def _answers(
        self, result: StoredResult, extractor: Component, head: Component, policy: Policy, digest: str
    ) -> bool:
        settings = self._kept.settings(result)
        images = ImageFacts(settings["data"], digest, settings["images"])
        normalized = is_normalized(extractor.manifest, head.manifest)
        key = key_of(conditions_of(policy).settings(images, normalized=normalized, bound=""))
        return is_kept(key, result.conditions) and (
            (policy.metric, policy.metric_version) == (METRIC, METRIC_VERSION)
        )

    def _undecided(self, policy: Policy, lacking: Sequence[tuple[Component, Component]]) -> str:
        pairs = list(dict.fromkeys(f"{left.reference} with {head.reference}" for left, head in lacking))
        more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        return (
            f"{self.candidate.name}: there is no result of {'; '.join(pairs[:SHOWN])}{more} under the conditions of "
            f"the policy {policy}. Measure it on arrival (measure=True, on the command line --measure), copy its "
            "evidence from where it was measured, or accept it as it is (unmeasured=True, --unmeasured), which the log "
            "of the policy records."
        )

    def _judged(
        self, partner: str, extractor: Component, head: Component, own: Component | None, tolerance: float
    ) -> Answer:
        answer = Answer(partner, extractor.reference, head.reference)
        if own is None:
            why = "the head names no extractor that it was trained with, or that is not in this registry: no bound"
            return attrs.evolve(answer, reason=why)
        cell, limit = self._cells[extractor.function, head.function], self._cells[own.function, head.function]
        accuracy, bound = cell.restricted, limit.restricted
        if accuracy is None or bound is None:
            return attrs.evolve(answer, reason=cell.reason or limit.reason)
        least = bound.accuracy - tolerance
        passed = accuracy.accuracy >= least - SLACK
        return attrs.evolve(answer, accuracy=accuracy, bound=bound, least=max(least, 0.0), passed=passed)

    def _matrix(self, pairs: Sequence[Pair], policy: Policy) -> Matrix:
        """Return the pairs as a matrix: extractors that give bounds first, the candidate last."""
        rows: dict[str, Component] = {}
        for _, extractor, _, own in pairs:
            for component in (own, extractor):
                if component is not None and component.digest != self.candidate.digest:
                    rows.setdefault(component.function, component)
        rows |= {self.candidate.function: self.candidate} if self.candidate.kind == "extractor" else {}
        columns = {head.function: head for _, _, head, _ in pairs}
        cells = [
            attrs.evolve(self._cells[left, right], extractor=row.reference, head=head.reference)
            if (left, right) in self._cells
            else _unmeasured(row, head)
            for left, row in rows.items()
            for right, head in columns.items()
        ]
        settings = {
            "normalisation": policy.bn_policy,
            "batch_size": policy.batch_size,
            "seed": policy.seed,
            "precision": "float32",
        }
        left, right = (
            tuple(component.described() for component in side.values()) for side in (rows, columns)
        )
        return Matrix(left, right, tuple(cells), settings)


def deciding(*, measure: bool = False, data: PolicyData = (), progress: Progress | None = None) -> Deciding:
    """Return the decider for versions that are imported, pulled or pushed into a registry.

    Args:
        measure: Measure what evidence does not decide; otherwise refuse it.
        data: Available images.
        progress: Called with done, total and what is being done during measurements.
    """

    def make(store: Store) -> Decide:
        def decide(question: Question) -> None:
            """Decide the policy for a version whose bytes have arrived.

            Raises:
                PolicyBroken: A partner fails; carries the outcome.
                PolicyUndecided: Figures are missing, and measuring is not allowed.
                PolicyDataMissing: The policy's images are needed but not available.
            """
            place = Reference(question.name, digest=question.candidate)
            candidate = PartLoader(store, admitted=True).component(place, f"{question.name}@{CANDIDATE}")
            outcome = Decider(
                store, candidate, data, progress=progress, recalls=True, measures=measure
            ).answer(question)
            if not outcome.passed:
                remedy = (
                    "A copy keeps its number: have it published as the next MAJOR version at its origin, or allow the "
                    f"break here with `compatkit policy set {question.name} --mode none` first"
                )
                raise PolicyBroken(refusal(outcome, remedy), subject=outcome)

        return decide

    return make


def narrowed(
    store: Store, question: Question, candidate: Component, against: Iterable[Reference]
) -> Question:
    """Return the question restricted to the named partners.

    Args:
        store: Registry of the partners.
        question: What the policy asks.
        candidate: The part.
        against: Partners, instead of those that the policy finds.

    Raises:
        UsageError: No policy defines the measurement, or a partner has the candidate's own kind.
    """
    policy = question.policy
    wanted = {"extractor": "head", "head": "extractor"}.get(candidate.kind)
    if policy is None or policy.data is None or wanted is None:
        raise UsageError(
            f"{question.name}: no policy defines how to measure this {candidate.kind}: {question.reason}. Set a "
            f"policy with `compatkit policy set {question.name}`."
        )
    partners: list[Partner] = []
    for reference in against:
        manifest = store.manifest(reference)
        if manifest.kind != wanted:
            raise UsageError(
                f"{reference} is of kind {manifest.kind}; a candidate of kind {candidate.kind} needs {wanted}s."
            )
        head = manifest if wanted == "head" else candidate.manifest
        own = next(trained_with(head), None)
        partners.append(Partner(reference, own))
    return attrs.evolve(question, partners=tuple(partners), reason="" if partners else "no partner was named")


def _report(extractor: Component, head: Component) -> Report:
    return check(extractor.manifest, head.manifest, own=head.is_own(extractor))


def _unmeasured(extractor: Component, head: Component) -> Cell:
    report = _report(extractor, head)
    reason = wiring_obstacle(report) or "not asked for"
    return Cell(extractor.reference, head.reference, report.wiring, report.promise, "none", reason=reason)
