"""Publish a manifest: validate it, store it, choose the version number, and link the version file last.

No lock is taken. The number depends on the neighbouring versions, the policy, and the partners that were measured.
These are read right before the version is linked and again right after. If another process linked a version in between,
the decision is made again, and a version that should not have been linked is withdrawn with the reason.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.manifest import Manifest, from_bytes, to_bytes
from compatkit.errors import CompatkitError, PolicyUndecided, VersionExists, VersionTooSmall
from compatkit.registry.holding import Holding
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.questions import Asker, Question, Vanished
from compatkit.registry.refs import References
from compatkit.registry.steps import check_step
from compatkit.registry.versions.diff import Difference, diff

FIRST = Version(1, 0, 0)
LONGEST = 2000
"""Characters of the reason with which a version is withdrawn here."""
LOOKS = 10
"""How often a publish starts again because a version vanished while it was read."""
Decide = Callable[[Question], object]
"""Measures what a question asks for; raises an error to refuse the version."""


@attrs.frozen
class Basis:
    """The state of the registry that a version number was chosen for.

    Attributes:
        below: The version that it is compared with, and its digest; None for a first version.
        above: Numbers above it in the same major line, in use or not.
        question: What the policy asks of it at this number.
    """

    target: Version
    below: tuple[Version, str | None] | None
    above: tuple[Version, ...]
    question: Question


class _Overtaken(Exception):
    """Another process linked a version, or changed a policy, since the number was chosen."""


@attrs.frozen(eq=False)
class Publisher:
    """Publishes one manifest under one name.

    Attributes:
        holding: What the manifest refers to.
        measured: The caller vouches that the measurement stated for new weights passed.
        major: Take the next MAJOR number, whatever the change demands.
        decide: Measures what the policy of the name asks for.
    """

    holding: Holding
    references: References
    asker: Asker
    measured: bool = False
    major: bool = False
    decide: Decide | None = None

    @property
    def name(self) -> str:
        """The name that the manifest is published under."""
        return self.holding.name

    @property
    def manifest(self) -> Manifest:
        """The manifest that is published."""
        return self.holding.manifest

    def publish(self, version: str | None) -> Reference:
        """See ``Store.publish``."""
        check_name(self.name)
        asked = None if version is None else Version.parse(version)
        data = to_bytes(self.manifest)
        digest = digest_of(data)
        self.holding.hold()
        self.holding.check_payload()
        answered: list[Question] = []
        vanished = 0
        while True:
            try:
                found = self._attempt(asked, digest, data, answered)
            except Vanished:
                vanished += 1
                if vanished == LOOKS:
                    raise
                continue
            if found is not None:
                return found

    def _attempt(
        self, asked: Version | None, digest: str, data: bytes, answered: list[Question]
    ) -> Reference | None:
        """Link the version; None if something changed in the meantime, so that the caller tries again.

        Args:
            asked: The number, or None for the least.
            digest: Of the manifest.
            data: The manifest.
            answered: The question that was decided last; decided ones are put there.
        """
        there = self._already(asked, digest)
        if there is not None:
            return Reference(self.name, there, digest=digest)
        question = self.asks(asked, digest)
        if question.is_open and [question] != answered:
            self._decide(question)
            answered[:] = [question]
            return None  # that may have taken long
        passed = question.is_open
        target = asked if asked is not None else self.least(measured=passed)
        basis = self._basis(target, digest)
        if basis.question.is_open and [basis.question] != answered:
            return None  # something was linked between the two looks
        if asked is not None and self.references.digest(self.name, asked) is None:
            self._check_step(basis, passed)
        if self._link(basis, digest, data, passed):
            return Reference(self.name, target, digest=digest)
        return None  # another process was faster

    def asks(self, asked: Version | None, digest: str) -> Question:
        """Return what the policy of the name asks; see ``Asker.ask``."""
        return self.asker.ask(self.name, self.manifest, digest, asked, major=self.major)

    def least(self, *, measured: bool) -> Version:
        """Return the version number that a publish would choose now.

        Args:
            measured: Whether what a policy asks for was measured and passed.
        """
        taken, latest = self.references.taken(self.name), self.references.latest(self.name)
        if latest is None:
            return max(taken).bumped("major") if taken else FIRST
        if self.major:
            return max(taken).bumped("major")
        bump = self._change(latest, measured).bump
        bump = "patch" if bump == "none" else bump  # the same, written by a program that left out defaults
        target = latest.bumped(bump)
        while target in taken:
            target = target.bumped(bump)
        return target

    def _already(self, asked: Version | None, digest: str) -> Version | None:
        """Return the version that already holds this manifest, so that there is nothing to do; None without one.

        Raises:
            VersionExists: The number that was asked for belongs to another manifest.
        """
        if asked is None:
            latest = self.references.latest(self.name)
            same = latest is not None and self.references.digest(self.name, latest) == digest
            return latest if same else None
        there = self.references.digest(self.name, asked)
        if there is not None and there != digest:
            raise VersionExists(
                f"{self.name}@{asked} exists with other content: it is {there}, this would be "
                f"{digest}. A version is never rewritten; publish without a version to get the next "
                "free number.",
                subject=f"{self.name}@{asked}",
            )
        return asked if there is not None else None

    def _decide(self, question: Question) -> None:
        if self.decide is None:
            raise PolicyUndecided(undecided(question), subject=question)
        self.decide(question)

    def _basis(self, target: Version, digest: str) -> Basis:
        below, above = self.references.neighbours(self.name, target)
        held = None if below is None else (below, self.references.digest(self.name, below))
        return Basis(target, held, above, self.asks(target, digest))

    def _link(self, basis: Basis, digest: str, data: bytes, passed: bool) -> bool:
        """Link the version if all is as it was when the number was chosen; False where it is not."""
        self.holding.objects.put(data)

        def ready() -> None:
            self.holding.hold(data)
            if self._basis(basis.target, digest) != basis:
                raise _Overtaken

        try:
            if not self.references.create(self.name, basis.target, digest, ready):
                return False
        except _Overtaken:
            return False
        self._look_back(basis, digest, passed)
        return True

    def _look_back(self, before: Basis, digest: str, passed: bool) -> None:
        """Check the version against what others linked at the same moment; withdraw it if it does not hold."""
        try:
            self._decide_again(before, digest, passed)
        except BaseException as error:
            reason = " ".join(
                f"published at the same moment as something that it does not go with: {error}".split()
            )
            self.references.withdraw(self.name, before.target, reason[:LONGEST])
            if not isinstance(error, CompatkitError):
                raise
            raise type(error)(
                f"{self.name}@{before.target} was withdrawn again, for something else was published at the same "
                f"moment. {error}",
                subject=error.subject,
            ) from error

    def _decide_again(self, before: Basis, digest: str, passed: bool) -> None:
        """Check the version against everything that appeared since the basis was read.

        Raises:
            CompatkitError: The version breaks a rule or a policy.
        """
        for look in range(1, LOOKS + 1):
            try:
                after = self._basis(before.target, digest)
                if after.below != before.below:
                    self._check_below(after, passed)
                for above in sorted({*after.above} - {*before.above})[:1]:
                    self._check_above(before.target, above)
                if not {*after.question.partners} <= {*before.question.partners}:
                    self._decide(after.question)
                return
            except Vanished:
                if look == LOOKS:
                    raise

    def _check_step(self, basis: Basis, passed: bool) -> None:
        """Raise if the requested number is too small a step for the change, or not the last of its line."""
        if basis.above:
            raise VersionTooSmall(
                f"{self.name}@{basis.target} would come after {basis.above[-1]} of the same major line; the numbers of "
                "a line only rise. Publish without a version to get the next free number.",
                subject=f"{self.name}@{basis.target}",
            )
        self._check_below(basis, passed)

    def _check_below(self, basis: Basis, passed: bool) -> None:
        if basis.below is not None:
            before = basis.below[0]
            check_step(self.name, before, basis.target, self._change(before, passed))

    def _check_above(self, target: Version, above: Version) -> None:
        """Raise if a version linked at the same moment is too small a step from this one."""
        if (
            above not in self.references.withdrawn(self.name)
            and self.references.digest(self.name, above) is not None
        ):
            check_step(self.name, target, above, diff(self.manifest, self._manifest(above), measured=True))

    def _change(self, before: Version, passed: bool) -> Difference:
        return diff(self._manifest(before), self.manifest, measured=self.measured or passed)

    def _manifest(self, version: Version) -> Manifest:
        digest = self.references.digest(self.name, version)
        if digest is None:
            raise Vanished(
                f"{self.name}@{version} vanished while it was read; the registry is being changed by hand."
            )
        return from_bytes(
            self.holding.objects.read(digest, most=MAX_BYTES), what=f"manifest of {self.name}@{version}"
        )


def undecided(question: Question) -> str:
    """Return the message for a version that a policy wants measured and that was not."""
    return (
        f"{question.name}: the policy {question.policy} asks how the new {question.kind} works with "
        f"{question.partner_names()}, and nobody measured it. Publish by Registry.publish, "
        "which measures first; or ask for the next MAJOR version, which breaks with them for all to see."
    )
