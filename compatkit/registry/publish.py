"""Publish a manifest: validate it, store it, choose the version number, and link the version file last.

No lock is taken. The number depends on the neighboring versions, the policy, and the partners that were measured.
These are read right before the version is linked and again right after. If another process linked a version in between,
the decision is made again, and a version that should not have been linked is withdrawn with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import attrs

from compatkit.contracts.manifest import Manifest, from_bytes, to_bytes
from compatkit.errors import CompatkitError, PolicyUndecided, VersionExists, VersionTooSmall
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.holding import Holding
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import References
from compatkit.registry.required_partners import Asker, Question, Vanished
from compatkit.registry.version_bumps import check_step
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


@attrs.define(eq=False)
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
    _answered: Question | None = attrs.field(init=False, default=None)
    _passed: bool = attrs.field(init=False, default=False)

    @cached_property
    def data(self) -> bytes:
        """The manifest as canonical JSON."""
        return to_bytes(self.manifest)

    @cached_property
    def digest(self) -> str:
        """Digest of the manifest."""
        return digest_of(self.data)

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
        requested = None if version is None else Version.parse(version)
        self.holding.hold()
        self.holding.check_payload()
        vanished = 0
        while True:
            try:
                reference = self._attempt(requested)
            except Vanished:
                vanished += 1
                if vanished == LOOKS:
                    raise
                continue
            if reference is not None:
                return reference

    def _attempt(self, requested: Version | None) -> Reference | None:
        """Link the version; None if something changed in the meantime, so that the caller tries again.

        Args:
            requested: The version number, or None for the least.
        """
        existing = self._already(requested)
        if existing is not None:
            return Reference(self.name, existing, digest=self.digest)
        question = self._asks(requested)
        if question.is_open and question != self._answered:
            self._decide(question)
            self._answered = question
            return None  # that may have taken long
        self._passed = question.is_open
        target = requested if requested is not None else self.least(measured=self._passed)
        basis = self._basis(target)
        if basis.question.is_open and basis.question != self._answered:
            return None  # something was linked between the two looks
        if requested is not None and self.references.digest(self.name, requested) is None:
            self._check_step(basis)
        if self._link(basis):
            return Reference(self.name, target, digest=self.digest)
        return None  # another process was faster

    def _asks(self, requested: Version | None) -> Question:
        return self.asker.ask(self.name, self.manifest, self.digest, requested, major=self.major)

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

    def _already(self, requested: Version | None) -> Version | None:
        """Return the version that already holds this manifest, if any; nothing needs publishing then.

        Raises:
            VersionExists: The number that was asked for belongs to another manifest.
        """
        if requested is None:
            latest = self.references.latest(self.name)
            same = latest is not None and self.references.digest(self.name, latest) == self.digest
            return latest if same else None
        existing = self.references.digest(self.name, requested)
        if existing is not None and existing != self.digest:
            raise VersionExists(
                f"{self.name}@{requested} exists with other content: it is {existing}, this would be "
                f"{self.digest}. A version is never rewritten; publish without a version to get the next "
                "free number.",
                subject=f"{self.name}@{requested}",
            )
        return requested if existing is not None else None

    def _decide(self, question: Question) -> None:
        if self.decide is None:
            raise PolicyUndecided(undecided(question), subject=question)
        self.decide(question)

    def _basis(self, target: Version) -> Basis:
        below, above = self.references.neighbors(self.name, target)
        compared = None if below is None else (below, self.references.digest(self.name, below))
        return Basis(target, compared, above, self._asks(target))

    def _link(self, basis: Basis) -> bool:
        """Link the version if all is as it was when the number was chosen; False where it is not."""
        self.holding.objects.put(self.data)

        def ready() -> None:
            self.holding.hold(self.data)
            if self._basis(basis.target) != basis:
                raise _Overtaken

        try:
            if not self.references.create(self.name, basis.target, self.digest, ready):
                return False
        except _Overtaken:
            return False
        self._look_back(basis)
        return True

    def _look_back(self, before: Basis) -> None:
        """Check the version against what was published concurrently; withdraw it on a conflict.

        An interruption is no conflict and withdraws nothing: a withdrawn version never comes back.

        Raises:
            CompatkitError: Of the check that failed.
        """
        try:
            self._decide_again(before)
        except CompatkitError as error:
            reason = " ".join(f"Conflicts with a version or policy published concurrently: {error}".split())
            self.references.withdraw(self.name, before.target, reason[:LONGEST])
            error.add_note(
                f"{self.name}@{before.target} was withdrawn again: it conflicts with a version or policy that was "
                "published concurrently."
            )
            raise
        except BaseException as error:
            error.add_note(
                f"{self.name}@{before.target} is published. It was not checked against what was published concurrently."
            )
            raise

    def _decide_again(self, before: Basis) -> None:
        """Check the version against everything that appeared since the basis was read.

        Raises:
            CompatkitError: The version breaks a rule or a policy.
        """
        for look in range(1, LOOKS + 1):
            try:
                after = self._basis(before.target)
                if after.below != before.below:
                    self._check_below(after)
                for above in sorted({*after.above} - {*before.above})[:1]:
                    self._check_above(before.target, above)
                if not {*after.question.partners} <= {*before.question.partners}:
                    self._decide(after.question)
                return
            except Vanished:
                if look == LOOKS:
                    raise

    def _check_step(self, basis: Basis) -> None:
        """Raise if the requested number is too small a step for the change, or not the last of its line."""
        if basis.above:
            raise VersionTooSmall(
                f"{self.name}@{basis.target} would come after {basis.above[-1]} of the same major line; the numbers of "
                "a line only rise. Publish without a version to get the next free number.",
                subject=f"{self.name}@{basis.target}",
            )
        self._check_below(basis)

    def _check_below(self, basis: Basis) -> None:
        if basis.below is not None:
            before = basis.below[0]
            check_step(self.name, before, basis.target, self._change(before, self._passed))

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
