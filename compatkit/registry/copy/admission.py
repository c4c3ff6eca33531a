"""Check whether imported versions may be added: version step and policies.

A copied version keeps its number, so a step that publish would enlarge is refused here. All incoming versions are
checked as if already released, so the result does not depend on their order; then refused ones are left out and the
rest is checked again. As in publish, the inputs of the decision are compared again right before and after a version
is linked.
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
from compatkit.registry.copy.report import refusing
from compatkit.registry.names import Reference, Version
from compatkit.registry.publish import MAX_REASON, Decide
from compatkit.registry.required_partners import PartnerFinder, PolicyRequirement
from compatkit.registry.version_bumps import why_understated

if TYPE_CHECKING:
    from compatkit.registry.store import Store

Deciding = Callable[["Store"], Decide]
"""Factory of the function that measures the requirements of a registry's policies."""
TRIES = 100
"""How often a blob is copied again after a garbage collection removed it."""


@attrs.frozen
class AdmissionInputs:
    """Inputs of the decision about a version.

    Attributes:
        below: Previous version with its digest, or None.
        above: Next version with the same major number and its digest, or None.
        requirement: Measurements that the policy of its name requires; None if no policy applies.
    """

    below: tuple[Version, str] | None
    above: tuple[Version, str] | None
    requirement: PolicyRequirement | None

    @property
    def basis(self) -> tuple[Any, ...]:
        """Values that determine the decision; if one changes, it is made again."""
        requirement = self.requirement
        return (
            self.below,
            self.above,
            requirement and (requirement.policy, requirement.previous, requirement.partners),
        )


@attrs.define(eq=False)
class Admission:
    """Decides which copied versions a registry admits; their blobs have been copied.

    Attributes:
        store: Registry that receives them.
        incoming: Incoming versions with name, number and digest, without those withdrawn in their source.
        copy_blob: Copies a blob unless it exists; until a version refers to it, it may be garbage-collected.
        deciding: Factory of the function that measures the requirements of policies; None leaves them unmeasured.
        unmeasured: Whether to admit versions that were not measured; the log of the policy records it.
    """

    store: Store
    incoming: list[Reference]
    copy_blob: Callable[[str], object]
    deciding: Deciding | None = None
    unmeasured: bool = False
    _finder: PartnerFinder = attrs.field(init=False)
    _decide: Decide | None = attrs.field(init=False, default=None)
    _admitted: dict[Reference, tuple[Any, ...]] = attrs.field(init=False, factory=dict)
    _manifests: dict[str, Manifest] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        store = self.store
        self._finder = PartnerFinder(
            self._manifest, store.references, lambda: store.index, store.policies, tuple(self.incoming)
        )

    def functions(self) -> list[str]:
        """Return the function digests of all parts whose measured results could answer the policies."""
        functions: set[str] = set()
        for reference in self.incoming:
            requirement = self._inputs(reference).requirement
            for partner in requirement.partners if requirement is not None else ():
                wanted = (reference.digest, partner.reference.digest, partner.bound)
                present = (each for each in wanted if each and self.store.objects.size(each) is not None)
                functions.update(function_digest(self._manifest(each)) for each in present)
        return sorted(functions)

    def check_all(self, progress: Callable[[int, int, str], None]) -> dict[Reference, CompatkitError]:
        """Return the refused versions and why; the others are checked again without them.

        Args:
            progress: Called with done, total and what is being done.

        Raises:
            EnvironmentFailure: Disk or network failed.
        """
        refused: dict[Reference, CompatkitError] = {}
        while True:
            new: dict[Reference, CompatkitError] = {}
            for done, reference in enumerate(self.incoming):
                progress(done, len(self.incoming), f"asking the policy of {reference}")
                with refusing(partial(new.__setitem__, reference)):
                    self._settle(reference)
            if not new:
                return refused
            refused |= new
            self.incoming = [reference for reference in self.incoming if reference not in new]
            self.__attrs_post_init__()

    def link(self, reference: Reference, create: Callable[[Callable[[], None]], bool]) -> bool:
        """Link a version if it may be added now.

        Args:
            reference: Version to link.
            create: Calls its argument and links the version; returns False if the number is taken.

        Raises:
            CompatkitError: The version is refused, as in ``_check``.
        """
        while True:
            if self._settle(reference):
                continue  # deciding may have taken long: compare again

            def ready() -> None:
                if self._admitted[reference] != self._inputs(reference).basis:
                    raise _Outdated

            try:
                created = create(ready)
            except _Outdated:
                continue
            if created:
                self._look_back(reference)
            return created

    def _look_back(self, reference: Reference) -> None:
        """Decide again after linking; withdraw the version if a concurrently imported one conflicts with it."""
        try:
            self._settle(reference)
        except CompatkitError as error:
            reason = " ".join(f"Conflicts with a version or policy added concurrently: {error}".split())
            if reference.version is not None:
                self.store.references.withdraw(reference.name, reference.version, reason[:MAX_REASON])
            raise

    def _settle(self, reference: Reference) -> bool:
        """Decide on a version unless its inputs are unchanged; return whether a decision was made."""
        inputs = self._inputs(reference)
        if self._admitted.get(reference) == inputs.basis:
            return False
        self._check(reference, inputs)
        self._admitted[reference] = inputs.basis
        return True

    def _check(self, reference: Reference, inputs: AdmissionInputs) -> None:
        """Raise for a version that may not be added.

        Raises:
            VersionUntrue: The step from the previous version, or to the next one, is too small for the change.
            PolicyBroken: It does not work with a released part.
            PolicyUndecided: It was not measured as the policy of its name requires.
            PolicyDataMissing: The images that the policy names are missing.
            FormatError: The policy of its name is damaged.
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
                self._answer(requirement)
            else:
                self._check_unmeasured(reference, inputs, requirement)
        except (PolicyUndecided, PolicyDataMissing):
            if not self.unmeasured or requirement.revision is None:
                raise
            self.store.policies.admit(requirement.revision.scope, reference)

    def _inputs(self, reference: Reference) -> AdmissionInputs:
        version = reference.version
        if version is None:
            return AdmissionInputs(None, None, None)
        alive = [each for each in self._finder.alive(reference.name) if each != version]
        below = max((each for each in alive if each < version), default=None)
        above = min((each for each in alive if each > version and each.major == version.major), default=None)
        sides = [each and (each, str(self._finder.digest(reference.name, each))) for each in (below, above)]
        return AdmissionInputs(sides[0], sides[1], self._requirement(reference, version))

    def _requirement(self, reference: Reference, version: Version) -> PolicyRequirement | None:
        gone = version in self.store.references.withdrawn(reference.name)
        if gone or self.store.policies.of(reference.name) is None:
            return None
        digest = str(reference.digest)
        return self._finder.requirement(reference.name, self._manifest(digest), digest, version)

    def _answer(self, requirement: PolicyRequirement) -> None:
        if self.deciding is None:
            raise PolicyUndecided(
                f"{requirement.name}: the policy {requirement.policy} requires a measurement of this "
                f"{requirement.kind} with {requirement.partner_names()}. Measure it with "
                "`compatkit.components.deciding.deciding`, or admit it unmeasured (unmeasured=True, "
                "--unmeasured), which the policy's log records.",
                subject=requirement,
            )
        self._decide = self._decide or self.deciding(self.store)
        self._decide(requirement)

    def _check_unmeasured(
        self, reference: Reference, inputs: AdmissionInputs, requirement: PolicyRequirement
    ) -> None:
        """Require the step without a policy if there is nothing to measure, as no result supports new weights."""
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
                f"{why}. Import the parts released against that version too, or admit it unmeasured (unmeasured=True, "
                "--unmeasured), which the policy's log records.",
                subject=requirement,
            )

    def _manifest(self, digest: str) -> Manifest:
        if digest not in self._manifests:
            self._manifests[digest] = from_bytes(self._data(digest), what=f"manifest {digest}")
        return self._manifests[digest]

    def _data(self, digest: str) -> bytes:
        for _ in range(TRIES if any(digest == reference.digest for reference in self.incoming) else 0):
            self.copy_blob(digest)
            try:
                return self.store.objects.read(digest, most=MAX_BYTES)
            except IntegrityError:
                continue  # collected since
        return self.store.objects.read(digest, most=MAX_BYTES)


class _Outdated(Exception):
    """The inputs of the decision changed."""
