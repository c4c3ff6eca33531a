"""Check whether imported versions may be added: version step and policies.

A copied version keeps its number, so it is refused if its step is too small for the change; publish would take a larger
step instead. All incoming versions are checked as if already released, so that the result does not depend on their
order; then refused ones are left out and the rest is checked again. As in publish, the inputs of the check are compared
again right before and after a version is linked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.manifest import Manifest, from_bytes, function_digest
from compatkit.errors import (
    CompatkitError,
    IntegrityError,
    PolicyDataMissing,
    PolicyUndecided,
    VersionUntrue,
)
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry.copy.report import on_refusal
from compatkit.registry.names import Reference, Version
from compatkit.registry.publish import MAX_REASON, PolicyCheck
from compatkit.registry.required_partners import PartnerFinder, PolicyRequirement
from compatkit.registry.version_bumps import why_understated

if TYPE_CHECKING:
    from compatkit.registry.store import Store

PolicyCheckFactory = Callable[["Store"], PolicyCheck]
"""Function that returns the policy check for a registry."""
MAX_COPIES = 100
"""Maximum number of copies of a blob that garbage collection removes again."""


@attrs.frozen
class AdmissionInputs:
    """Inputs of the check of a version.

    Attributes:
        below: Previous version and its digest, or None.
        above: Next version with the same major number, and its digest; or None.
        requirement: Measurements that the policy of the name requires; None if no policy applies.
    """

    below: tuple[Version, str] | None
    above: tuple[Version, str] | None
    requirement: PolicyRequirement | None

    @property
    def key(self) -> tuple[Any, ...]:
        """Values that determine the result; if one changes, the check is repeated."""
        requirement = self.requirement
        return (
            self.below,
            self.above,
            requirement and (requirement.policy, requirement.previous, requirement.partners),
        )


@attrs.define(eq=False)
class Admission:
    """Checks which versions a registry may add; their blobs have been copied.

    Attributes:
        store: Registry to add versions to.
        incoming: Versions to add, with name, number and digest, without those withdrawn in their source.
        copy_blob: Function that copies a blob unless it exists; an unreferenced blob may be garbage-collected.
        policy_checks: Factory of the policy check; None refuses versions that need a measurement.
        unmeasured: Whether to admit versions that were not measured; the policy's log records it.
        restoring: Whether the versions are in the registry and withdrawn.
    """

    store: Store
    incoming: list[Reference]
    copy_blob: Callable[[str], object]
    policy_checks: PolicyCheckFactory | None = None
    unmeasured: bool = False
    restoring: bool = False
    _finder: PartnerFinder = attrs.field(init=False)
    _policy_check: PolicyCheck | None = attrs.field(init=False, default=None)
    _admitted: dict[Reference, tuple[Any, ...]] = attrs.field(init=False, factory=dict)
    _manifests: dict[str, Manifest] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        store = self.store
        self._finder = PartnerFinder(
            self._manifest, store.references, lambda: store.index, store.policies, tuple(self.incoming)
        )

    def functions(self) -> list[str]:
        """Return the function digests of components whose measured results policies may use."""
        functions: set[str] = set()
        for reference in self.incoming:
            requirement = self._inputs(reference).requirement
            for partner in requirement.partners if requirement is not None else ():
                digests = (reference.digest, partner.reference.digest, partner.bound)
                present = (
                    digest for digest in digests if digest and self.store.objects.size(digest) is not None
                )
                functions.update(function_digest(self._manifest(digest)) for digest in present)
        return sorted(functions)

    def check_all(self, progress: Callable[[int, int, str], None]) -> dict[Reference, CompatkitError]:
        """Return the refused versions with their errors; the others are checked again without them.

        Args:
            progress: Function called with done, total and a description.

        Raises:
            EnvironmentFailure: Disk or network failed.
        """
        refused: dict[Reference, CompatkitError] = {}
        while True:
            new: dict[Reference, CompatkitError] = {}
            for done, reference in enumerate(self.incoming):
                progress(done, len(self.incoming), f"checking the policy of {reference}")
                with on_refusal(partial(new.__setitem__, reference)):
                    self._ensure_checked(reference)
            if not new:
                return refused
            refused |= new
            self.incoming = [reference for reference in self.incoming if reference not in new]
            self.__attrs_post_init__()

    def link(self, reference: Reference, create: Callable[[Callable[[], None]], bool]) -> bool:
        """Link a version if it may be added now.

        Args:
            reference: Version to link.
            create: Function that calls its argument and links the version; returns False if the number is taken.

        Raises:
            CompatkitError: The version is refused, as in ``_check``.
        """
        while True:
            if self._ensure_checked(reference):
                continue  # the check may have taken long: compare the inputs again

            def check_inputs() -> None:
                if self._admitted[reference] != self._inputs(reference).key:
                    raise _Outdated

            try:
                created = create(check_inputs)
            except _Outdated:
                continue
            if created:
                self._check_linked(reference)
            return created

    def _check_linked(self, reference: Reference) -> None:
        """Check again after linking; withdraw the version if a concurrently imported one conflicts with it."""
        try:
            self._ensure_checked(reference)
        except CompatkitError as error:
            reason = " ".join(f"Conflicts with a version or policy added concurrently: {error}".split())
            if reference.version is not None:
                withdrawals = self.store.references.withdrawals(reference.name)
                withdrawals.append(
                    reference.version, reason[:MAX_REASON], restore=False, author=self.store.author
                )
            raise

    def _ensure_checked(self, reference: Reference) -> bool:
        """Check a version unless its inputs are unchanged; return whether it was checked."""
        inputs = self._inputs(reference)
        if self._admitted.get(reference) == inputs.key:
            return False
        self._check(reference, inputs)
        self._admitted[reference] = inputs.key
        return True

    def _check(self, reference: Reference, inputs: AdmissionInputs) -> None:
        """Check the steps to the neighboring versions, and the policy.

        Raises:
            VersionUntrue: The step from the previous version, or to the next one, is too small for the change.
            PolicyBroken: The version does not work with a released component.
            PolicyUndecided: The version was not measured as the policy of its name requires.
            PolicyDataMissing: The images of the policy are missing.
            FormatError: The policy is damaged.
        """
        own = None if reference.version is None else (reference.version, str(reference.digest))
        for before, after in ((inputs.below, own), (own, inputs.above)):
            if before is None or after is None or before[1] == after[1]:
                continue
            if why := why_understated(
                *((version, self._manifest(digest)) for version, digest in (before, after))
            ):
                raise VersionUntrue(
                    f"{reference} does not fit between the versions of {self.store.root}: {why}. Publish "
                    "the component there, with a larger step.",
                    subject=str(reference),
                )
        requirement = inputs.requirement
        if requirement is None:
            return
        try:
            if requirement.is_open:
                self._check_policy(requirement)
            else:
                self._check_unmeasured(reference, inputs, requirement)
        except (PolicyUndecided, PolicyDataMissing):
            if not self.unmeasured or requirement.revision is None:
                raise
            self.store.policies.admit(requirement.revision.scope, reference, self.store.author)

    def _inputs(self, reference: Reference) -> AdmissionInputs:
        """Return the neighbors and the requirement of a version as they are now."""
        version = reference.version
        if version is None:
            return AdmissionInputs(None, None, None)
        others = [other for other in self._finder.alive(reference.name) if other != version]
        below = max((other for other in others if other < version), default=None)
        above = min(
            (other for other in others if other > version and other.major == version.major), default=None
        )
        neighbors = [
            other and (other, str(self._finder.digest(reference.name, other))) for other in (below, above)
        ]
        return AdmissionInputs(neighbors[0], neighbors[1], self._requirement(reference, version))

    def _requirement(self, reference: Reference, version: Version) -> PolicyRequirement | None:
        is_withdrawn = version in self.store.references.withdrawn(reference.name)
        if (is_withdrawn and not self.restoring) or self.store.policies.of(reference.name) is None:
            return None
        digest = str(reference.digest)
        return self._finder.requirement(reference.name, self._manifest(digest), digest, version)

    def _check_policy(self, requirement: PolicyRequirement) -> None:
        if self.policy_checks is None:
            raise PolicyUndecided(
                f"{requirement.name}: the policy {requirement.policy} requires a measurement of this "
                f"{requirement.kind} with {requirement.partner_names()}. Measure it with "
                "`compatkit.components.policy_checks.policy_checks`, or admit it unmeasured (unmeasured=True, "
                "--unmeasured), which the policy's log records.",
                subject=requirement,
            )
        self._policy_check = self._policy_check or self.policy_checks(self.store)
        self._policy_check(requirement)

    def _check_unmeasured(
        self, reference: Reference, inputs: AdmissionInputs, requirement: PolicyRequirement
    ) -> None:
        """Require the step for unmeasured weights if the policy has nothing to measure the version with."""
        policy, below = requirement.policy, inputs.below
        if (
            policy is None
            or below is None
            or reference.version is None
            or not policy.concerns(requirement.kind)
        ):
            return
        before, after = self._manifest(below[1]), self._manifest(str(reference.digest))
        if why := why_understated((below[0], before), (reference.version, after), measured=False):
            raise PolicyUndecided(
                f"{reference.name}: the policy {policy} applies, {requirement.reason}, and no result supports it: "
                f"{why}. Import the components released against that version too, or admit it unmeasured "
                "(unmeasured=True, --unmeasured), which the policy's log records.",
                subject=requirement,
            )

    def _manifest(self, digest: str) -> Manifest:
        if digest not in self._manifests:
            self._manifests[digest] = from_bytes(self._read(digest), what=f"manifest {digest}")
        return self._manifests[digest]

    def _read(self, digest: str) -> bytes:
        """Return the bytes of a manifest; one of an incoming version is copied again if it was garbage-collected."""
        for _ in range(MAX_COPIES if any(digest == reference.digest for reference in self.incoming) else 0):
            self.copy_blob(digest)
            try:
                return self.store.objects.read(digest, max_bytes=MAX_BYTES)
            except IntegrityError:
                continue  # garbage-collected in the meantime
        return self.store.objects.read(digest, max_bytes=MAX_BYTES)


class _Outdated(Exception):
    """The inputs of the check changed."""
