"""Publish a manifest: validate it, store it, choose the version number, and link the version file last.

No lock is taken. The number depends on the neighboring versions, the policy, and the measured partners. These are read
right before the version is linked and again right after. If another process linked a version in between, the checks are
repeated, and a version that should not have been linked is withdrawn with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import attrs

from compatkit.contracts.manifest import Manifest, from_bytes, to_bytes
from compatkit.errors import CompatkitError, PolicyUndecided, VersionExists, VersionTooSmall
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.authorship import Author
from compatkit.registry.clashes import commands_to_free
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.publications import record_path, record_publication
from compatkit.registry.refs import References
from compatkit.registry.required_blobs import RequiredBlobs
from compatkit.registry.required_partners import PartnerFinder, PolicyRequirement, VersionRemoved
from compatkit.registry.settings import rules_of
from compatkit.registry.version_bumps import check_step
from compatkit.registry.versions.diff import Difference, diff

FIRST_VERSION = Version(1, 0, 0)
MAX_REASON = 2000
"""Maximum number of characters of the reason when a conflicting version is withdrawn."""
MAX_ATTEMPTS = 10
"""Maximum number of attempts if versions vanish while they are read."""
PolicyCheck = Callable[[PolicyRequirement], object]
"""Function that measures the partners of a requirement, and raises an error to refuse the version."""


@attrs.frozen
class PublishState:
    """State of the registry for which a version number was chosen.

    Attributes:
        target: Chosen version number.
        below: Version to compare with, and its digest; None for a first version.
        above: Used numbers above the target in its major line, including withdrawn versions.
        requirement: Measurements that the policy requires for this number.
    """

    target: Version
    below: tuple[Version, str | None] | None
    above: tuple[Version, ...]
    requirement: PolicyRequirement


class _Changed(Exception):
    """The registry changed since the version number was chosen."""


@attrs.define(eq=False)
class Publisher:
    """Publishes one manifest under one name.

    Attributes:
        required_blobs: Blobs and components that the manifest refers to.
        references: Names and versions.
        finder: Finds the measurements that a policy requires.
        measured: Whether the caller states that the measurement of new weights passed.
        major: Whether to take the next MAJOR number, even if the change requires less.
        policy_check: Function that makes the required measurements; None refuses versions that need any.
        data: Bytes of the manifest; canonical JSON unless given.
        copied: Version of this name that gets a further number; it does not count as the version to publish.
        before_link: Function called with the number right before it is linked; may raise to stop.
        author: Author of the publication; recorded, and signs it if there is a key.
    """

    required_blobs: RequiredBlobs
    references: References
    finder: PartnerFinder
    measured: bool = False
    major: bool = False
    policy_check: PolicyCheck | None = None
    data: bytes = attrs.field(
        default=attrs.Factory(lambda self: to_bytes(self.manifest), takes_self=True), repr=False
    )
    copied: Version | None = None
    before_link: Callable[[Version], object] = lambda version: None
    author: Author = attrs.field(factory=Author.of, kw_only=True)
    _measured_requirement: PolicyRequirement | None = attrs.field(init=False, default=None)
    _passed: bool = attrs.field(init=False, default=False)

    @cached_property
    def digest(self) -> str:
        """Digest of the manifest."""
        return digest_of(self.data)

    @property
    def name(self) -> str:
        """Name that the manifest is published under."""
        return self.required_blobs.name

    @property
    def manifest(self) -> Manifest:
        """Manifest to publish."""
        return self.required_blobs.manifest

    def publish(self, version: str | None) -> Reference:
        """Publish the manifest; see ``Store.publish``."""
        check_name(self.name)
        self._check_author()
        requested = None if version is None else Version.parse(version)
        self.required_blobs.retain()
        self.required_blobs.check_payload()
        failures = 0
        while True:
            try:
                reference = self._attempt(requested)
            except VersionRemoved:
                failures += 1
                if failures == MAX_ATTEMPTS:
                    raise
                continue
            if reference is not None:
                return reference

    def _check_author(self) -> None:
        rules = rules_of(self.references.root)
        if rules.settings.require_signature:
            rules.check_author("publishers", self.author, f"publish {self.name}", self.name)

    def _attempt(self, requested: Version | None) -> Reference | None:
        """Link the version; return None if the registry changed in the meantime, so that the caller tries again."""
        existing = self._published(requested)
        if existing is not None:
            return Reference(self.name, existing, digest=self.digest)
        requirement = self._requirement(requested)
        if requirement.is_open and requirement != self._measured_requirement:
            self._measure(requirement)
            self._measured_requirement = requirement
            return None  # the registry may have changed during the measurement
        self._passed = requirement.is_open
        target = requested if requested is not None else self.next_version(measured=self._passed)
        state = self._state(target)
        if state.requirement.is_open and state.requirement != self._measured_requirement:
            return None  # another process changed the partners
        if requested is not None and self.references.digest(self.name, requested) is None:
            self._check_step(state)
        if self._link(state):
            return Reference(self.name, target, digest=self.digest)
        return None  # another process was faster

    def _requirement(self, requested: Version | None) -> PolicyRequirement:
        return self.finder.requirement(self.name, self.manifest, self.digest, requested, major=self.major)

    def next_version(self, *, measured: bool) -> Version:
        """Return the version number that ``publish`` would choose now.

        Args:
            measured: Whether the measurements that a policy requires passed.
        """
        latest = self.references.latest(self.name)
        if latest is None or self.major:
            used = self.references.used_numbers(self.name)
            return max(used).bumped("major") if used else FIRST_VERSION
        bump = self._change(latest, measured).bump
        if bump == "none":  # other bytes with the same values, such as omitted defaults
            bump = "patch"
        return self.references.next_number(self.name, latest, bump)

    def _published(self, requested: Version | None) -> Version | None:
        """Return the version that already has this manifest, so that nothing needs publishing; else None.

        Raises:
            VersionExists: The requested number belongs to another manifest.
        """
        if requested is None:
            latest = self.references.latest(self.name)
            same = latest is not None and self.references.digest(self.name, latest) == self.digest
            return latest if same and latest != self.copied else None
        existing = self.references.digest(self.name, requested)
        if existing is not None and existing != self.digest:
            raise VersionExists(
                f"{self.name}@{requested} exists with other content: {existing}, not {self.digest}. A version is never "
                "rewritten; publish without a version to get the next free number, or free this one: "
                f"{commands_to_free(Reference(self.name, requested), self.references)}.",
                subject=f"{self.name}@{requested}",
            )
        return requested if existing is not None else None

    def _measure(self, requirement: PolicyRequirement) -> None:
        if self.policy_check is None:
            raise PolicyUndecided(undecided_message(requirement), subject=requirement)
        self.policy_check(requirement)

    def _state(self, target: Version) -> PublishState:
        below, above = self.references.neighbors(self.name, target)
        compared = None if below is None else (below, self.references.digest(self.name, below))
        return PublishState(target, compared, above, self._requirement(target))

    def _link(self, state: PublishState) -> bool:
        """Link the version; return False if the registry changed since the number was chosen."""
        self.required_blobs.objects.put(self.data)
        root, label = self.references.root, f"{self.name}@{state.target}"
        records = (root / record_path(self.name, state.target)).parent
        self.author.sign_version(root, self.digest, label)
        record = partial(record_publication, root, self.name, state.target, self.digest, self.author)
        record(published=False)

        def check_state() -> None:
            self.required_blobs.retain(self.data)
            if self._state(state.target) != state:
                raise _Changed
            self.before_link(state.target)

        try:
            if not self.references.create(
                self.name, state.target, self.digest, check_state, others=[records]
            ):
                return False
        except _Changed:
            return False
        try:
            record(published=True)
        finally:  # the version is there, with or without its record
            self._check_linked(state)
        return True

    def _check_linked(self, before: PublishState) -> None:
        """Check the linked version against concurrently published versions; withdraw it on a conflict.

        An interruption does not withdraw the version.

        Raises:
            CompatkitError: A check failed.
        """
        try:
            self._check_concurrent(before)
        except CompatkitError as error:
            reason = " ".join(f"Conflicts with a version or policy published concurrently: {error}".split())
            withdrawals = self.references.withdrawals(self.name)
            withdrawals.append(before.target, reason[:MAX_REASON], restore=False, author=self.author)
            error.add_note(
                f"{self.name}@{before.target} was withdrawn again: it conflicts with a concurrently published one."
            )
            raise
        except BaseException as error:
            error.add_note(
                f"{self.name}@{before.target} is published. It was not checked against concurrently published versions."
            )
            raise

    def _check_concurrent(self, before: PublishState) -> None:
        """Check the version against versions and policies that appeared since the state was read.

        Raises:
            CompatkitError: The version breaks a rule or a policy.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                after = self._state(before.target)
                if after.below != before.below:
                    self._check_below(after)
                for above in sorted({*after.above} - {*before.above})[:1]:
                    self._check_above(before.target, above)
                if not {*after.requirement.partners} <= {*before.requirement.partners}:
                    self._measure(after.requirement)
                return
            except VersionRemoved:
                if attempt == MAX_ATTEMPTS:
                    raise

    def _check_step(self, state: PublishState) -> None:
        """Raise if the requested number is too small a step for the change, or not the last of its major line."""
        if state.above:
            raise VersionTooSmall(
                f"{self.name}@{state.target} is below {state.above[-1]} of the same major line; new numbers must be "
                "higher. Publish without a version to get the next free number.",
                subject=f"{self.name}@{state.target}",
            )
        self._check_below(state)

    def _check_below(self, state: PublishState) -> None:
        if state.below is not None:
            before = state.below[0]
            check_step(self.name, before, state.target, self._change(before, self._passed))

    def _check_above(self, target: Version, above: Version) -> None:
        """Raise if a concurrently linked version is too small a step from this one."""
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
            raise VersionRemoved(f"{self.name}@{version} was removed by another process while it was read.")
        return from_bytes(
            self.required_blobs.objects.read(digest, max_bytes=MAX_BYTES),
            what=f"manifest of {self.name}@{version}",
        )


def undecided_message(requirement: PolicyRequirement) -> str:
    """Return the message for a version without the measurements that its policy requires."""
    return (
        f"{requirement.name}: the policy {requirement.policy} requires a measurement of the new "
        f"{requirement.kind} with {requirement.partner_names()}. Publish with Registry.publish, which measures first, "
        "or publish the next MAJOR version."
    )
