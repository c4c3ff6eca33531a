"""What policies ask of a candidate: measured with the released parts that it has to work with, or recalled.

The figures are those of the matrix, on the policy's images, under its policy of batch normalisation; they are kept as
evidence, whatever they say. A version that comes from elsewhere keeps its number, so that its answer is yes or no, and
comes from evidence, whoever measured it: of several figures of one pair under the same conditions the lowest counts,
and for a bound the highest, so that nothing is gained by bringing a better one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from compatkit.components.images import Given, policy_images
from compatkit.components.loading import Parts
from compatkit.components.outcomes import Answer, Outcome, refusal
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
from compatkit.evaluation.planning import barred, is_normalised
from compatkit.evaluation.records import Cells, keep
from compatkit.registry.copy.admission import Deciding
from compatkit.registry.evidence import StoredResult
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.publish import Decide
from compatkit.registry.questions import Partner, Question
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

CANDIDATE = "candidate"
"""Stands in place of a version, in tables and in the evidence of a candidate."""
SHOWN = 4
"""Pairs that a message lists."""
SLACK = 1e-9
"""Rounding of shares of up to 2^31 images: exactly the bound minus the tolerance passes."""


def conditions_of(policy: Policy) -> Conditions:
    """Return the conditions that a policy measures under."""
    return Conditions(policy.normalisation, policy.batch_size, policy.seed)


Pair = tuple[str, Component, Component, Component | None]
"""Partner, extractor, head, and the extractor that gives the bound."""


@attrs.define(eq=False)
class Decider:
    """Answers what policies ask of one candidate; what was measured once is not measured again.

    Attributes:
        store: Where the partners are.
        candidate: The part.
        given: Images at hand.
        kin: Parts that are not released yet, by manifest digest, such as a new head's own extractor.
        version: Number that was asked for.
        progress: Called with done, total and what is being done.
        recalls: Whether to answer from what is kept, as for what comes from elsewhere.
        measures: Whether to measure what is not kept.
    """

    store: Store
    candidate: Component
    given: Given = ()
    kin: Mapping[str, Component] = attrs.field(factory=dict)
    version: str | None = None
    progress: Progress | None = None
    recalls: bool = attrs.field(default=False, kw_only=True)
    measures: bool = attrs.field(default=True, kw_only=True)
    _cells: dict[tuple[str, str], Cell] = attrs.field(init=False, factory=dict)
    _kept: Cells = attrs.field(init=False, factory=Cells)
    _parts: Parts = attrs.field(
        init=False, default=attrs.Factory(lambda self: Parts(self.store, self.recalls), takes_self=True)
    )

    def __call__(self, question: Question) -> Outcome:
        """Answer, and refuse what fails.

        Raises:
            PolicyBroken: A partner is not served; carries the outcome.
            PolicyDataMissing: The images that decide are not at hand.
            UsageError: The policy asks for a metric that this compatkit does not measure.
        """
        outcome = self.answer(question)
        if not outcome.passed:
            raise PolicyBroken(refusal(outcome), subject=outcome)
        return outcome

    def answer(self, question: Question) -> Outcome:
        """Measure what is asked for and say what follows."""
        policy = question.policy
        outcome = Outcome(question)
        if policy is not None and policy.data is not None and question.is_open:
            outcome = self._measured(question, policy, policy.data)
        return self._numbered(outcome)

    def _numbered(self, outcome: Outcome) -> Outcome:
        """Add the version numbers that are open to the candidate."""
        question, policy = outcome.question, outcome.question.policy
        place = question.name, self.candidate.manifest
        wide = policy is not None and policy.across_major
        offered = None if wide and not outcome.passed else str(self.store.least_version(*place, major=True))
        if not outcome.passed:
            return attrs.evolve(outcome, offered=offered)
        least = self.version or str(self.store.least_version(*place, measured=question.is_open))
        return attrs.evolve(outcome, allowed=least, offered=offered)

    def _measured(self, question: Question, policy: Policy, wanted: Images) -> Outcome:
        if (policy.metric, policy.metric_version) != (METRIC, METRIC_VERSION):
            raise UsageError(
                f"{question.name}: the policy asks for the metric {policy.metric} {policy.metric_version}, this "
                f"compatkit measures {METRIC} {METRIC_VERSION}. Its figures would be others: set the policy again, or "
                "publish with the compatkit that measures what it asks for.",
                subject=policy,
            )
        pairs = [self._pair(one) for one in question.partners]
        why = [barred(_report(extractor, head)) for _, extractor, head, _ in pairs]
        if any(why):  # nothing is measured where the contracts say no
            others = "not measured: the others do not fit"
            answers = [
                Answer(partner, left.reference, head.reference, reason=one or others)
                for (partner, left, head, _), one in zip(pairs, why, strict=True)
            ]
            return Outcome(question, tuple(answers), self._matrix(pairs, policy))
        self._provide(pairs, policy, wanted)
        answers = [self._judged(*pair, policy.tolerance) for pair in pairs]
        return Outcome(question, tuple(answers), self._matrix(pairs, policy))

    def _provide(self, pairs: Sequence[Pair], policy: Policy, wanted: Images) -> None:
        """Find figures of all pairs and their bounds.

        Raises:
            PolicyUndecided: Figures are missing, and nothing is to be measured.
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
        """Return the images that decide, or the sample of them."""
        split = policy_images(wanted, self.given)
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
        """Return a component whose digest alone is known, under a name that it has here; None if it has none."""
        known = self.kin.get(digest) or self._parts.of_digest(digest)
        if known is not None:
            return known
        names = [name for name, one in self.store.index.roots() if one == digest]
        try:
            place = self.store.resolve(Reference(min(names), digest=digest)) if names else None
            return None if place is None else self._parts.component(place)
        except NotFound:
            return None

    def _measure(self, pairs: Iterable[tuple[Component, Component]], split: Split, policy: Policy) -> None:
        """Measure pairs, each extractor once over the images, and keep the figures."""
        wanted: dict[str, tuple[Component, dict[str, Component]]] = {}
        for left, head in pairs:
            wanted.setdefault(left.function, (left, {}))[1].setdefault(head.function, head)
        for left, columns in wanted.values():
            heads, tests = list(columns.values()), {left.reference: split}
            cells = measure([left], heads, tests, conditions_of(policy), progress=self.progress)
            keep(self.store, [left, *heads], cells)
            self._cells |= {
                (left.function, head.function): one for head, one in zip(heads, cells, strict=True)
            }

    def _recall(
        self, extractor: Component, head: Component, policy: Policy, digest: str, *, highest: bool
    ) -> None:
        """Take the figure of a pair that counts, if one is kept under exactly the conditions of the policy."""
        if (extractor.function, head.function) in self._cells:
            return
        found: list[Cell] = []
        for result in self.store.evidence.kept([extractor.function], [head.function]):
            try:
                if self._answers(result, extractor, head, policy, digest):
                    found.append(self._kept.of(result, extractor.reference, head.reference))
            except FormatError:
                continue  # a damaged figure is none
        found = [one for one in found if one.restricted is not None]
        if found:
            ordered = sorted(found, key=lambda one: one.restricted.accuracy if one.restricted else 0.0)
            self._cells[extractor.function, head.function] = ordered[-1 if highest else 0]

    def _answers(
        self, result: StoredResult, extractor: Component, head: Component, policy: Policy, digest: str
    ) -> bool:
        settings = self._kept.settings(result)
        images = ImageFacts(settings["data"], digest, settings["images"])
        normalised = is_normalised(extractor.manifest, head.manifest)
        asked = key_of(conditions_of(policy).settings(images, normalised=normalised, bound=""))
        return is_kept(asked, result.conditions) and (
            (policy.metric, policy.metric_version) == (METRIC, METRIC_VERSION)
        )

    def _undecided(self, policy: Policy, lacking: Sequence[tuple[Component, Component]]) -> str:
        pairs = list(dict.fromkeys(f"{left.reference} with {head.reference}" for left, head in lacking))
        more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        return (
            f"{self.candidate.name}: no result is kept of {'; '.join(pairs[:SHOWN])}{more} under the conditions of the "
            f"policy {policy}. Let it be measured as it comes in (measure=True, on the command line --measure), bring "
            "its results along from where it was measured, or let it in as it is (unmeasured=True, --unmeasured), "
            "which the log of the policy tells."
        )

    def _judged(
        self, partner: str, extractor: Component, head: Component, own: Component | None, tolerance: float
    ) -> Answer:
        answer = Answer(partner, extractor.reference, head.reference)
        if own is None:
            why = "the head names no extractor that it was trained with, or that is not in this registry: no bound"
            return attrs.evolve(answer, reason=why)
        cell, limit = self._cells[extractor.function, head.function], self._cells[own.function, head.function]
        found, bound = cell.restricted, limit.restricted
        if found is None or bound is None:
            return attrs.evolve(answer, reason=cell.reason or limit.reason)
        least = bound.accuracy - tolerance
        passed = found.accuracy >= least - SLACK
        return attrs.evolve(answer, accuracy=found, bound=bound, least=max(least, 0.0), passed=passed)

    def _matrix(self, pairs: Sequence[Pair], policy: Policy) -> Matrix:
        """Return the pairs as a matrix: the extractors that give the bounds first, the candidate last."""
        rows: dict[str, Component] = {}
        for _, extractor, _, own in pairs:
            for one in (own, extractor):
                if one is not None and one.digest != self.candidate.digest:
                    rows.setdefault(one.function, one)
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
            "normalisation": policy.normalisation,
            "batch_size": policy.batch_size,
            "seed": policy.seed,
            "precision": "float32",
        }
        left, right = (tuple(one.described() for one in side.values()) for side in (rows, columns))
        return Matrix(left, right, tuple(cells), settings)


def deciding(*, measure: bool = False, data: Given = (), progress: Progress | None = None) -> Deciding:
    """Return what decides on versions that are imported, pulled or pushed into a registry.

    Args:
        measure: Measure what no evidence decides; else it is refused.
        data: Images at hand.
        progress: Called with done, total and what is being done, while something is measured.
    """

    def make(store: Store) -> Decide:
        def decide(question: Question) -> None:
            """Answer what a policy asks of a version whose bytes have come in.

            Raises:
                PolicyBroken: A partner is not served; carries the outcome.
                PolicyUndecided: Figures are missing, and nothing is to be measured.
                PolicyDataMissing: The images that decide are not at hand, and are needed.
            """
            place = Reference(question.name, digest=question.candidate)
            candidate = Parts(store, admitted=True).component(place, f"{question.name}@{CANDIDATE}")
            outcome = Decider(
                store, candidate, data, progress=progress, recalls=True, measures=measure
            ).answer(question)
            if not outcome.passed:
                remedy = (
                    "A copy keeps its number: have it published as the next MAJOR version where it comes from; or, to "
                    f"let it break with them here, set `compatkit policy set {question.name} --mode none` first"
                )
                raise PolicyBroken(refusal(outcome, remedy), subject=outcome)

        return decide

    return make


def test(
    store: Store,
    candidate: Component,
    name: str,
    *,
    version: str | None = None,
    against: Iterable[Reference] | None = None,
    data: Given = (),
    progress: Progress | None = None,
) -> Outcome:
    """Measure a part as if it were published under a name now; nothing is published, the figures are kept.

    Args:
        store: Where the partners are.
        candidate: A released part, or one without a version.
        name: That it would get.
        version: Number that it would get; None for the next.
        against: Partners in place of those that the policy finds.
        data: Images at hand.
        progress: Called with done, total and what is being done.
    """
    question = store.asks(name, candidate.manifest, version=version)
    if against is not None:
        question = _narrowed(store, question, candidate, against)
    return Decider(store, candidate, data, version=version, progress=progress).answer(question)


def _narrowed(
    store: Store, question: Question, candidate: Component, against: Iterable[Reference]
) -> Question:
    """Return the question for the partners that were named.

    Raises:
        UsageError: No policy says how to measure, or a partner is of the candidate's own kind.
    """
    policy = question.policy
    wanted = {"extractor": "head", "head": "extractor"}.get(candidate.kind)
    if policy is None or policy.data is None or wanted is None:
        raise UsageError(
            f"{question.name}: nothing says how this {candidate.kind} would be measured: {question.reason}. Set a "
            f"policy with `compatkit policy set {question.name}`."
        )
    partners: list[Partner] = []
    for reference in against:
        manifest = store.manifest(reference)
        if manifest.kind != wanted:
            raise UsageError(
                f"{reference} is of kind {manifest.kind}; {candidate.kind}s are measured with {wanted}s."
            )
        head = manifest if wanted == "head" else candidate.manifest
        own = next(trained_with(head), None)
        partners.append(Partner(reference, own))
    return attrs.evolve(question, partners=tuple(partners), reason="" if partners else "no partner was named")


def _report(extractor: Component, head: Component) -> Report:
    return check(extractor.manifest, head.manifest, own=head.is_own(extractor))


def _unmeasured(extractor: Component, head: Component) -> Cell:
    report = _report(extractor, head)
    reason = barred(report) or "not asked for"
    return Cell(extractor.reference, head.reference, report.wiring, report.promise, "none", reason=reason)
