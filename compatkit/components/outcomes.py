"""Outcomes of policies: figures of each partner, the matrix, and the allowed version numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.evidence import Figure
from compatkit.foundation.display import Shown, aligned
from compatkit.foundation.json_fields import key_of
from compatkit.registry.required_partners import PolicyRequirement
from compatkit.reports.tabular import Tabular

if TYPE_CHECKING:
    from compatkit.reports.matrix import Matrix

SHOWN = 4
"""Maximum number of partners listed in a message."""
HEADINGS = ("extractor", "head", "bound", "least", "measured", "images", "")


@attrs.frozen
class PartnerResult:
    """Result of measuring a candidate with a released part.

    Attributes:
        partner: Reference of the released part.
        extractor: Reference of the pair's extractor; the candidate is this or the head.
        head: Reference of the pair's head.
        accuracy: Accuracy of the pair on the policy's images of the common classes; None if not measured.
        bound: Accuracy of the head on its own extractor, on the same images; None if not measured.
        min_accuracy: Bound minus tolerance; None without a bound.
        passed: Whether the accuracy is at least ``min_accuracy``.
        reason: Reason for a failure without measurement; else empty.
    """

    partner: str
    extractor: str
    head: str
    accuracy: Figure | None = None
    bound: Figure | None = None
    min_accuracy: float | None = attrs.field(default=None, metadata={"key": "least"})
    passed: bool = False
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        values = attrs.asdict(self)
        return {key_of(field): values[field.name] for field in attrs.fields(PartnerResult)}

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table row, for the columns ``HEADINGS``."""
        bound = "" if self.bound is None else f"{self.bound.accuracy:.3f}"
        required = "" if self.min_accuracy is None else f"{self.min_accuracy:.3f}"
        accuracy = "" if self.accuracy is None else f"{self.accuracy.accuracy:.3f}"
        count = "" if self.accuracy is None else f"{self.accuracy.count:,}"
        verdict = "passes" if self.passed else f"fails{': ' * bool(self.reason)}{self.reason}"
        return self.extractor, self.head, bound, required, accuracy, count, verdict

    def __str__(self) -> str:
        if self.accuracy is None or self.bound is None or self.min_accuracy is None:
            return f"{self.partner}: {self.reason}"
        return (
            f"{self.partner}: {self.accuracy.accuracy:.3f} of {self.accuracy.count:,} images, where at least "
            f"{self.min_accuracy:.3f} is required (bound {self.bound.accuracy:.3f})"
        )


@attrs.frozen(repr=False)
class PolicyOutcome(Shown, Tabular):
    """Outcome of a policy for one candidate; as a table it has a row for each partner.

    Attributes:
        requirement: Measurements that the policy requires, with the state of the registry.
        answers: Result with each partner; empty if nothing was required.
        matrix: The measured pairs, including bounds; None if nothing was required.
        allowed: Version number it may be published under; None if it fails.
        offered: Next MAJOR number, open to it despite a failure; None if the policy also binds that.
    """

    requirement: PolicyRequirement
    answers: tuple[PartnerResult, ...] = ()
    matrix: Matrix | None = None
    allowed: str | None = None
    offered: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all partners passed, or there were none."""
        return all(answer.passed for answer in self.answers)

    _columns = ("partner", "extractor", "head", "accuracy", "count", "bound", "least", "passed", "reason")

    def _rows(self) -> list[dict[str, Any]]:
        return [
            answer.to_json()
            | {
                "accuracy": answer.accuracy and answer.accuracy.accuracy,
                "count": answer.accuracy and answer.accuracy.count,
                "bound": answer.bound and answer.bound.accuracy,
            }
            for answer in self.answers
        ]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        import json

        requirement, policy = self.requirement, self.requirement.policy
        return {
            "name": requirement.name,
            "kind": requirement.kind,
            "candidate": requirement.candidate,
            "previous": None if requirement.previous is None else str(requirement.previous),
            "policy": None if policy is None else policy.to_json(),
            "revision": None if requirement.revision is None else requirement.revision.number,
            "passed": self.passed,
            "reason": requirement.reason,
            "answers": [answer.to_json() for answer in self.answers],
            "allowed": self.allowed,
            "offered": self.offered,
            "matrix": None if self.matrix is None else json.loads(self.matrix.to_json()),
        }

    @property
    def verdict(self) -> str:
        """Verdict and allowed version numbers, in one line."""
        if not self.answers:
            return f"nothing to measure: {self.requirement.reason}; it may be published as {self.allowed}"
        if self.passed:
            return f"passes; it may be published as {self.allowed}"
        if self.offered is None:
            return "fails; the policy binds across majors, so no number is open to it under this name"
        return f"fails; it is offered only as {self.offered}, which breaks with them for all to see"

    def rows(self) -> list[tuple[str, ...]]:
        """Return a table: headings, then a row for each partner."""
        return [HEADINGS, *(answer.row() for answer in self.answers)]

    def __str__(self) -> str:
        policy = self.requirement.policy
        lines = [f"{self.requirement.name}: {self.verdict}"]
        if policy is not None and self.answers:
            lines.append(f"policy {policy}")
        if self.answers:
            lines += aligned(self.rows())
        return "\n".join(lines)


@attrs.frozen
class PolicyOutcomes(Tabular):
    """Outcomes for several candidates as one table, with a row for each partner of each.

    Attributes:
        outcomes: Outcome for each candidate.
    """

    outcomes: tuple[PolicyOutcome, ...]

    _columns = PolicyOutcome._columns

    def _rows(self) -> list[dict[str, Any]]:
        return [row for outcome in self.outcomes for row in outcome._rows()]


def refusal(outcome: PolicyOutcome, remedy: str = "") -> str:
    """Return why a candidate is refused and what to do, in one paragraph.

    Args:
        outcome: Outcome of the policy.
        remedy: Advice if the version number is fixed; empty for the default.
    """
    requirement = outcome.requirement
    failed = [str(answer) for answer in outcome.answers if not answer.passed]
    more = f"; and {len(failed) - SHOWN} more" if len(failed) > SHOWN else ""
    after = f" after {requirement.previous.version}" if requirement.previous is not None else ""
    if not remedy and outcome.offered is None:
        remedy = "The policy binds across majors: publish under another name, or change the policy"
    elif not remedy:
        remedy = (
            f"It is offered only as {outcome.offered}: version={outcome.offered!r} or major=True, on the command line "
            "--version or --major"
        )
    return (
        f"{requirement.name}: the new {requirement.kind}{after} breaks the policy {requirement.policy}. "
        f"{'; '.join(failed[:SHOWN])}{more}. {remedy}."
    )
