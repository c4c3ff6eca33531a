"""Running a policy: measure a candidate with the released parts that it has to work with, and say what it may be.

The figures are those of the matrix, on the policy's images, under its normalisation; they are kept as evidence,
whatever they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.components.loading import described, keep, load, part_of, rebuilt
from compatkit.components.outcomes import Answer, Outcome, refusal
from compatkit.contracts.channels import channel_statistics
from compatkit.contracts.check import check
from compatkit.contracts.evidence import METRIC, METRIC_VERSION, Cell
from compatkit.contracts.manifest import Manifest, to_bytes, trained_with
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import (
    CompatkitError,
    NotFound,
    PolicyBroken,
    PolicyDataMissing,
    UsageError,
)
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.matrix import LoadedPart
from compatkit.evaluation.matrix import measure as measure_pairs
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.questions import Partner, Question
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

if TYPE_CHECKING:
    from torch import Tensor, nn

Progress = Callable[[int, int, str], None]
Given = Sequence["Split | DataSet | Callable[[str], Split | DataSet]"]
"""Images at hand: splits, data sets, or what finds one of them by the name of a split."""
CANDIDATE = "candidate"
"""Stands where a version would, in tables and in what is kept of a candidate's figures."""
SLACK = 1e-9
"""Of shares of at most 2^31 images that are compared as floats: exactly at the bound minus the tolerance passes."""


def measure(
    store: Store,
    extractor: LoadedPart,
    heads: Sequence[LoadedPart],
    split: Split,
    policy: Policy,
    progress: Progress | None = None,
) -> list[Cell]:
    """Measure one extractor under heads as a policy asks, and keep the figures: the one place that does either."""
    cells = measure_pairs(
        [extractor],
        heads,
        {extractor.reference: split},
        conditions_of(policy),
        progress=progress,
    )
    keep(store, [extractor], heads, cells)
    return cells


def conditions_of(policy: Policy) -> Conditions:
    """Return the conditions that a policy measures under."""
    return Conditions(policy.normalisation, policy.batch_size, policy.seed)


def images(wanted: Images, given: Given = ()) -> Split:
    """Return the images that decide: those that were given, else those found by name; the digest must agree.

    Args:
        wanted: Name and digest.
        given: Images at hand; of a data set both splits are looked at.

    Raises:
        PolicyDataMissing: None of them has the digest; says what there is.
    """
    seen: dict[str, str] = {}
    why = ""
    for one in (*given, _named):
        try:
            splits = _splits(one(wanted.name) if callable(one) else one)
        except CompatkitError as error:
            why = f"{error} "
            continue
        for split in splits:
            if split.digest == wanted.digest:
                return split
            if split.name == wanted.name:
                seen[split.digest] = split.name
    there = "; ".join(f"{name}, {digest}" for digest, name in seen.items())
    why = f"What is at hand holds other images, labels or classes: {there}. " if seen else why
    raise PolicyDataMissing(
        f"the policy is decided on {wanted.name}, {wanted.digest}, which is not at hand. {why}Pass those images "
        "(data=; on the command line --data NAME, --recipe FILE or --data-root DIR). Nothing is published without "
        "them.",
        subject=wanted,
    )


def _splits(given: Split | DataSet) -> tuple[Split, ...]:
    return (given.train, given.test) if isinstance(given, DataSet) else (given,)


def _named(name: str) -> DataSet:
    """Load the data set of ``mnist/test``.

    Raises:
        UnknownName: No data set has this name.
        DataError: It is in none of the folders, or damaged.
    """
    from compatkit.data.loading import load as load_data

    return load_data(name.rpartition("/")[0] or name)


@attrs.define(eq=False)
class Decider:
    """Answers what policies ask of one candidate; what was measured once is not measured again.

    Attributes:
        candidate: The part, with its module.
        given: Images at hand.
        kin: Parts that are not released yet, by manifest digest, such as a new head's own extractor.
        version: Number that was asked for.
        outcomes: What was found, in the order in which it was asked for.
    """

    store: Store
    candidate: LoadedPart
    given: Given = ()
    kin: Mapping[str, LoadedPart] = attrs.field(factory=dict)
    version: str | None = None
    progress: Progress | None = None
    outcomes: list[Outcome] = attrs.field(factory=list)
    _cells: dict[tuple[str, str], Cell] = attrs.field(factory=dict)
    _parts: dict[str, LoadedPart] = attrs.field(factory=dict)

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
        outcome = self._numbered(outcome)
        self.outcomes.append(outcome)
        return outcome

    def _numbered(self, outcome: Outcome) -> Outcome:
        """Add the numbers that the candidate may get."""
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
        barred = [_barred(extractor, head) for _, extractor, head, _ in pairs]
        if any(barred):  # nothing is measured where the contracts say no
            answers = [
                Answer(
                    partner,
                    left.reference,
                    head.reference,
                    reason=why or "not measured: the others do not fit",
                )
                for (partner, left, head, _), why in zip(pairs, barred, strict=True)
            ]
            return Outcome(question, tuple(answers), self._matrix(pairs, policy))
        self._provide(pairs, policy, wanted)
        answers = [self._judged(*pair, policy.tolerance) for pair in pairs]
        return Outcome(question, tuple(answers), self._matrix(pairs, policy))

    def _provide(self, pairs: Sequence[Pair], policy: Policy, wanted: Images) -> None:
        """See that there are figures of all pairs and their bounds."""
        self._fill(pairs, self._images(policy, wanted), policy)

    def _images(self, policy: Policy, wanted: Images) -> Split:
        """Return the images that decide, or the sample of them."""
        split = images(wanted, self.given)
        if policy.cap is not None and policy.cap < len(split):
            split = split.subset(policy.cap, policy.seed)
        return split

    def _pair(self, partner: Partner) -> Pair:
        other = self._loaded(partner.reference)
        own = None if partner.bound is None else self._by_digest(partner.bound)
        if self.candidate.kind == "head":
            return str(partner.reference), other, self.candidate, own
        return str(partner.reference), self.candidate, other, own

    def _loaded(self, reference: Reference) -> LoadedPart:
        digest = str(reference.digest)
        if digest not in self._parts:
            self._parts[digest] = load(self.store, reference)
        return self._parts[digest]

    def _by_digest(self, digest: str) -> LoadedPart | None:
        """Return a component whose digest alone is known, under a name that it has here; None if it has none."""
        known = self._parts.get(digest) or self.kin.get(digest)
        if known is not None:
            return known
        names = [name for name, one in self.store.index.roots() if one == digest]
        try:
            return self._loaded(self.store.resolve(Reference(min(names), digest=digest))) if names else None
        except NotFound:
            return None

    def _fill(self, pairs: Sequence[Pair], split: Split, policy: Policy) -> None:
        """Measure the pairs and their bounds, each extractor once over the images, unless that was done."""
        wanted: dict[str, tuple[LoadedPart, dict[str, LoadedPart]]] = {}
        for _, extractor, head, own in pairs:
            for left in (own, extractor):
                if left is not None and (left.function, head.function) not in self._cells:
                    wanted.setdefault(left.function, (left, {}))[1].setdefault(head.function, head)
        for left, heads in wanted.values():
            cells = measure(self.store, left, list(heads.values()), split, policy, self.progress)
            for head, cell in zip(heads.values(), cells, strict=True):
                self._cells[left.function, head.function] = cell

    def _judged(
        self, partner: str, extractor: LoadedPart, head: LoadedPart, own: LoadedPart | None, tolerance: float
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
        rows: dict[str, LoadedPart] = {}
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
        parts = map(described, rows.values()), map(described, columns.values())
        return Matrix(tuple(parts[0]), tuple(parts[1]), tuple(cells), settings)


Pair = tuple[str, LoadedPart, LoadedPart, LoadedPart | None]
"""Partner, extractor, head, and the extractor that gives the bound."""


def candidate_of(store: Store, name: str, digest: str, manifest: Manifest, module: nn.Module) -> LoadedPart:
    """Return a part that has no version yet, to be measured."""
    return part_of(store, f"{name}@{CANDIDATE}", digest, manifest, module)


def publish(
    store: Store,
    name: str,
    manifest: Manifest,
    module: nn.Module,
    *,
    version: str | None = None,
    major: bool = False,
    data: Given = (),
    progress: Progress | None = None,
) -> Reference:
    """Publish one component, once the policy of its name is answered; arguments as for ``Registry.publish``.

    Args:
        store: Where; the component's blobs must have been put.
        name: One to three segments.
        manifest: Of the component.
        module: With its weights, in eval mode.
        version: None takes the least step.
        major: Take the next MAJOR number, which policies do not bind.
        data: Images at hand.
        progress: Called with done, total and what is being done, while a policy is measured.

    Raises:
        PolicyBroken: The component does not work with a released partner; carries the outcome.
        PolicyDataMissing: The images that decide are not at hand.
        VersionExists: The number belongs to another manifest.
        VersionTooSmall: The change demands a larger step.
    """
    from compatkit.contracts.codec import digest

    candidate = candidate_of(store, name, digest(to_bytes(manifest)), manifest, module)
    decider = Decider(store, candidate, data, version=version, progress=progress)
    return store.publish(name, manifest, version=version, major=major, decide=decider)


def register(
    store: Store,
    name: str,
    manifest: Manifest,
    state: Mapping[str, Tensor],
    *,
    version: str | None = None,
    major: bool = False,
    data: Given = (),
    progress: Progress | None = None,
) -> Reference:
    """Publish a component whose contract its module keeps; see ``Registry.publish``.

    Args:
        store: Where.
        name: One to three segments.
        manifest: As it was stated.
        state: The weights.
        version: As for ``publish``, like what follows.
        major: As for ``publish``.
        data: As for ``publish``.
        progress: As for ``publish``.
    """
    from compatkit.components.proofs import probe_of, remember_proof
    from compatkit.components.verification import verify

    to_bytes(manifest)  # values that no contract can hold are refused before anything is built
    module = rebuilt(manifest.blueprint, state, name)
    parameters = sum(one.numel() for one in module.parameters())
    payload = attrs.evolve(manifest.payload, count=len(state), parameters=parameters)
    contract = manifest.contract
    if contract.statistical.probe is None:
        made = probe_of(module, contract.structural, manifest.blueprint)
        contract = attrs.evolve(contract, statistical=attrs.evolve(contract.statistical, probe=made))
    manifest = attrs.evolve(manifest, payload=payload, contract=contract)
    trained = [store.manifest(one) for one in trained_with(manifest)]
    verify(
        manifest, module, thorough=True, state=state, whose=name, trained_with=trained[0] if trained else None
    )
    for one in contract.statistical.features or ():
        if one.per_channel is not None:
            channel_statistics(store.read_blob(one.per_channel["blob"]))
    kept = attrs.evolve(manifest, payload=store.put_state(state, parameters=parameters))
    reference = publish(store, name, kept, module, version=version, major=major, data=data, progress=progress)
    remember_proof(store, kept, reference)
    return reference


def test(
    store: Store,
    candidate: LoadedPart,
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
    store: Store, question: Question, candidate: LoadedPart, against: Iterable[Reference]
) -> Question:
    """Return the question for partners that were named.

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


def _barred(extractor: LoadedPart, head: LoadedPart) -> str:
    """Return why two parts cannot be wired as they are; empty where they can."""
    report = check(extractor.manifest, head.manifest, own=head.is_own(extractor))
    if report.wiring == "direct":
        return ""
    codes = [one.code for one in report.findings if one.severity in ("refuses", "adaptable")]
    return f"wiring {report.wiring}: {', '.join(codes)}"


def _unmeasured(extractor: LoadedPart, head: LoadedPart) -> Cell:
    report = check(extractor.manifest, head.manifest, own=head.is_own(extractor))
    reason = _barred(extractor, head) or "not asked for"
    return Cell(extractor.reference, head.reference, report.wiring, report.promise, "none", reason=reason)
