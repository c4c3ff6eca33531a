"""Check compatibility policies: measure a candidate with the released parts that it must work with, or use evidence.

Accuracy is measured as in the matrix, on the policy's images and under its batch-norm policy, and always recorded as
evidence. For a copied version, whose number is fixed, existing evidence decides. If there are several results for one
pair under the same conditions, the lowest accuracy and the highest bound count: adding a better result gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from compatkit.components.images import PolicyData, policy_images
from compatkit.components.loading import PartLoader
from compatkit.components.outcomes import PartnerResult, PolicyOutcome, refusal
from compatkit.contracts.check import Report, check
from compatkit.contracts.evidence import METRIC, METRIC_VERSION, Cell
from compatkit.contracts.manifest import trained_with
from compatkit.data.dataset import Split
from compatkit.errors import FormatError, NotFound, PolicyBroken, PolicyUndecided, UsageError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Progress, is_kept, key_of
from compatkit.evaluation.matrix import measure
from compatkit.evaluation.prospect import have_batch_norm, wiring_obstacle
from compatkit.evaluation.records import Cells, keep
from compatkit.registry.copy.admission import PolicyCheckFactory
from compatkit.registry.evidence import StoredResult
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.publish import PolicyCheck
from compatkit.registry.required_partners import Partner, PolicyRequirement
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

CANDIDATE = "candidate"
"""Placeholder for the version of a candidate, in tables and evidence."""
MAX_LISTED = 4
"""Limit of pairs listed in a message."""
ROUNDING = 1e-9
"""Rounding error of shares of up to 2^31 images; an accuracy of exactly the bound minus the tolerance passes."""


def conditions_of(policy: Policy) -> Conditions:
    """Return the conditions of a policy's measurements."""
    return Conditions(policy.bn_policy, policy.batch_size, policy.seed)


Pair = tuple[str, Component, Component, Component | None]
"""Partner, extractor, head, and the extractor that gives the upper bound."""


@attrs.define(eq=False)
class PolicyChecker:
    """Checks policies for one candidate; measurements are cached.

    Attributes:
        store: Registry of the partners.
        candidate: Part to be released.
        data: Available images.
        unreleased: Unreleased parts by manifest digest, such as a new head's own extractor.
        version: Requested version number.
        progress: Called with done, total and a description.
        use_evidence: Whether to use evidence, as for copied versions.
        can_measure: Whether to measure if evidence is missing.
    """

    store: Store
    candidate: Component
    data: PolicyData = ()
    unreleased: Mapping[str, Component] = attrs.field(factory=dict)
    version: str | None = None
    progress: Progress | None = None
    use_evidence: bool = attrs.field(default=False, kw_only=True)
    can_measure: bool = attrs.field(default=True, kw_only=True)
    _cells: dict[tuple[str, str], Cell] = attrs.field(init=False, factory=dict)
    _stored: Cells = attrs.field(init=False, factory=Cells)
    _parts: PartLoader = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: PartLoader(self.store, self.use_evidence), takes_self=True),
    )

    def __call__(self, requirement: PolicyRequirement) -> PolicyOutcome:
        """Check the requirement, and raise if the candidate fails.

        Raises:
            PolicyBroken: A partner fails; carries the outcome.
            PolicyDataMissing: The policy's images are not available.
            UsageError: This compatkit does not support the policy's metric.
        """
        outcome = self.answer(requirement)
        if not outcome.passed:
            raise PolicyBroken(refusal(outcome), subject=outcome)
        return outcome

    def answer(self, requirement: PolicyRequirement) -> PolicyOutcome:
        """Measure what the policy requires and return the outcome."""
        policy = requirement.policy
        outcome = PolicyOutcome(requirement)
        if policy is not None and policy.data is not None and requirement.is_open:
            outcome = self._measure_all(requirement, policy, policy.data)
        return self._with_versions(outcome)

    def _with_versions(self, outcome: PolicyOutcome) -> PolicyOutcome:
        """Add the version numbers that the candidate may take."""
        requirement, policy = outcome.requirement, outcome.requirement.policy
        name, manifest = requirement.name, self.candidate.manifest
        across_major = policy is not None and policy.across_major
        if outcome.passed or not across_major:
            outcome = attrs.evolve(outcome, offered=str(self.store.next_version(name, manifest, major=True)))
        if not outcome.passed:
            return outcome
        allowed = self.version or str(self.store.next_version(name, manifest, measured=requirement.is_open))
        return attrs.evolve(outcome, allowed=allowed)

    def _measure_all(self, requirement: PolicyRequirement, policy: Policy, wanted: Images) -> PolicyOutcome:
        if (policy.metric, policy.metric_version) != (METRIC, METRIC_VERSION):
            raise UsageError(
                f"{requirement.name}: the policy uses the metric {policy.metric} {policy.metric_version}, but this "
                f"compatkit measures {METRIC} {METRIC_VERSION}. Set the policy again, or publish with a compatkit that "
                "measures the policy's metric.",
                subject=policy,
            )
        pairs = [self._pair(item) for item in requirement.partners]
        obstacles = [wiring_obstacle(_report(extractor, head)) for _, extractor, head, _ in pairs]
        if any(obstacles):
            unmeasured = "not measured: the others do not fit"
            answers = [
                PartnerResult(partner, left.reference, head.reference, reason=obstacle or unmeasured)
                for (partner, left, head, _), obstacle in zip(pairs, obstacles, strict=True)
            ]
            return PolicyOutcome(requirement, tuple(answers), self._matrix(pairs, policy))
        self._fill_cells(pairs, policy, wanted)
        answers = [self._result(*pair, policy.tolerance) for pair in pairs]
        return PolicyOutcome(requirement, tuple(answers), self._matrix(pairs, policy))

    def _fill_cells(self, pairs: Sequence[Pair], policy: Policy, wanted: Images) -> None:
        """Load or measure the cells of all pairs and their bounds.

        Raises:
            PolicyUndecided: Cells are missing, and ``can_measure`` is False.
        """
        if self.use_evidence:
            digest = wanted.digest if policy.cap is None else self._images(policy, wanted).digest
            for _, extractor, head, own in pairs:
                if own is not None:
                    self._load_result(own, head, policy, digest, highest=True)
                if own is None or own.function != extractor.function:
                    self._load_result(extractor, head, policy, digest, highest=False)
        missing = [
            (left, head)
            for _, extractor, head, own in pairs
            for left in (own, extractor)
            if left is not None and (left.function, head.function) not in self._cells
        ]
        if missing and not self.can_measure:
            raise PolicyUndecided(self._undecided(policy, missing), subject=policy)
        if missing:
            self._measure(missing, self._images(policy, wanted), policy)

    def _images(self, policy: Policy, wanted: Images) -> Split:
        """Return the policy's images, or a sample of them if the policy has a cap."""
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
        """Return the component of a manifest digest; None if it has no name in this registry."""
        known = self.unreleased.get(digest) or self._parts.of_digest(digest)
        if known is not None:
            return known
        names = [name for name, root in self.store.index.roots() if root == digest]
        try:
            reference = self.store.resolve(Reference(min(names), digest=digest)) if names else None
            return None if reference is None else self._parts.component(reference)
        except NotFound:
            return None

    def _measure(self, pairs: Iterable[tuple[Component, Component]], split: Split, policy: Policy) -> None:
        """Measure pairs, each extractor once over the images, and record the results."""
        rows: dict[str, tuple[Component, dict[str, Component]]] = {}
        for left, head in pairs:
            rows.setdefault(left.function, (left, {}))[1].setdefault(head.function, head)
        for left, columns in rows.values():
            heads, tests = list(columns.values()), {left.reference: split}
            cells = measure([left], heads, tests, conditions_of(policy), progress=self.progress)
            keep(self.store, [left, *heads], cells)
            self._cells |= {
                (left.function, head.function): cell for head, cell in zip(heads, cells, strict=True)
            }

    def _load_result(
        self, extractor: Component, head: Component, policy: Policy, digest: str, *, highest: bool
    ) -> None:
        """Take the lowest or highest recorded result of a pair under the policy's conditions, if there is one."""
        if (extractor.function, head.function) in self._cells:
            return
        cells: list[Cell] = []
        for result in self.store.evidence.results([extractor.function], [head.function]):
            try:
                if self._applies(result, extractor, head, policy, digest):
                    cells.append(self._stored.of(result, extractor.reference, head.reference))
            except FormatError:
                continue  # a damaged result does not count
        cells = [cell for cell in cells if cell.restricted is not None]
        if cells:
            ordered = sorted(cells, key=lambda cell: cell.restricted.accuracy if cell.restricted else 0.0)
            self._cells[extractor.function, head.function] = ordered[-1 if highest else 0]

    def _applies(
        self, result: StoredResult, extractor: Component, head: Component, policy: Policy, digest: str
    ) -> bool:
        settings = self._stored.settings(result)
        images = ImageFacts(settings["data"], digest, settings["images"])
        batch_norm = have_batch_norm(extractor.manifest, head.manifest)
        key = key_of(conditions_of(policy).settings(images, batch_norm=batch_norm, bound=""))
        return is_kept(key, result.conditions)

    def _undecided(self, policy: Policy, missing: Sequence[tuple[Component, Component]]) -> str:
        pairs = list(dict.fromkeys(f"{left.reference} with {head.reference}" for left, head in missing))
        more = f" and {len(pairs) - MAX_LISTED} more" if len(pairs) > MAX_LISTED else ""
        return (
            f"{self.candidate.name}: no result of {'; '.join(pairs[:MAX_LISTED])}{more} under the conditions of the "
            f"policy {policy}. Measure it on arrival (measure=True, --measure), copy its evidence too, or accept it "
            "unmeasured (unmeasured=True, --unmeasured), which the policy's log records."
        )

    def _result(
        self, partner: str, extractor: Component, head: Component, own: Component | None, tolerance: float
    ) -> PartnerResult:
        result = PartnerResult(partner, extractor.reference, head.reference)
        if own is None:
            reason = "no bound: the head names no own extractor, or one that is not in this registry"
            return attrs.evolve(result, reason=reason)
        cell, limit = self._cells[extractor.function, head.function], self._cells[own.function, head.function]
        accuracy, bound = cell.restricted, limit.restricted
        if accuracy is None or bound is None:
            return attrs.evolve(result, reason=cell.reason or limit.reason)
        required = bound.accuracy - tolerance
        passed = accuracy.accuracy >= required - ROUNDING
        return attrs.evolve(
            result, accuracy=accuracy, bound=bound, min_accuracy=max(required, 0.0), passed=passed
        )

    def _matrix(self, pairs: Sequence[Pair], policy: Policy) -> Matrix:
        """Return the pairs as a matrix, with extractors of bounds in the first rows, the candidate in the last."""
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
        extractors = tuple(component.described() for component in rows.values())
        heads = tuple(component.described() for component in columns.values())
        return Matrix(extractors, heads, tuple(cells), settings)


def policy_checks(
    *, measure: bool = False, data: PolicyData = (), progress: Progress | None = None, fixed: bool = True
) -> PolicyCheckFactory:
    """Return a factory of the policy check for versions that are imported, pulled, pushed or copied into a registry.

    Args:
        measure: Whether to measure if evidence is missing; such versions are refused otherwise.
        data: Available images.
        progress: Function called with done, total and a description during measurements.
        fixed: Whether the version numbers are fixed, as those of another registry.
    """

    def policy_check_of(store: Store) -> PolicyCheck:
        def policy_check(requirement: PolicyRequirement) -> None:
            """Check the policy for a version whose blobs have been copied.

            Raises:
                PolicyBroken: A partner fails; carries the outcome.
                PolicyUndecided: Results are missing, and ``measure`` is False.
                PolicyDataMissing: The policy's images are needed but not available.
            """
            reference = Reference(requirement.name, digest=requirement.candidate)
            candidate = PartLoader(store, admitted=True).component(
                reference, f"{requirement.name}@{CANDIDATE}"
            )
            checker = PolicyChecker(
                store, candidate, data, progress=progress, use_evidence=True, can_measure=measure
            )
            outcome = checker.answer(requirement)
            if not outcome.passed:
                remedy = (
                    "A copy has a fixed number: publish it as the next MAJOR version at its origin, or first allow the "
                    f"break here with `compatkit policy set {requirement.name} --mode none`"
                )
                raise PolicyBroken(refusal(outcome, remedy if fixed else ""), subject=outcome)

        return policy_check

    return policy_check_of


def narrowed(
    store: Store, requirement: PolicyRequirement, candidate: Component, against: Iterable[Reference]
) -> PolicyRequirement:
    """Return the requirement with the given partners instead of those of the policy.

    Args:
        store: Registry of the partners.
        requirement: Requirement of the policy.
        candidate: Part to be released.
        against: Partners to measure with.

    Raises:
        UsageError: No policy defines the measurement, or a partner has the wrong kind.
    """
    policy = requirement.policy
    wanted = {"extractor": "head", "head": "extractor"}.get(candidate.kind)
    if policy is None or policy.data is None or wanted is None:
        raise UsageError(
            f"{requirement.name}: no policy defines how to measure this {candidate.kind}: {requirement.reason}. Set a "
            f"policy with `compatkit policy set {requirement.name}`."
        )
    partners: list[Partner] = []
    for reference in against:
        manifest = store.manifest(reference)
        if manifest.kind != wanted:
            raise UsageError(
                f"{reference} is of kind {manifest.kind}; expected kind {wanted}, to pair with {candidate.kind}s."
            )
        head = manifest if wanted == "head" else candidate.manifest
        own = next(trained_with(head), None)
        partners.append(Partner(reference, own))
    return attrs.evolve(
        requirement, partners=tuple(partners), reason="" if partners else "no partner was named"
    )


def _report(extractor: Component, head: Component) -> Report:
    return check(extractor.manifest, head.manifest, own=head.is_own(extractor))


def _unmeasured(extractor: Component, head: Component) -> Cell:
    report = _report(extractor, head)
    reason = wiring_obstacle(report) or "not requested"
    return Cell(extractor.reference, head.reference, report.wiring, report.promise, "none", reason=reason)
