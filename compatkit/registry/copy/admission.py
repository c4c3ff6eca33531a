"""Check whether imported versions may be added: version step and policies.

A copied version keeps its number, so a step that publish would enlarge is refused here. All incoming versions are
checked as if they were released already, so the answer does not depend on their order; refused ones are then left out
and the rest is checked again. As at publish, the inputs of the decision are compared again right before a version is
linked and right after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.manifest import Manifest, from_bytes, function_digest
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    IntegrityError,
    PolicyDataMissing,
    PolicyUndecided,
    VersionUntrue,
)
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry.names import Reference, Version
from compatkit.registry.publish import LONGEST, Decide
from compatkit.registry.questions import Asker, Question
from compatkit.registry.steps import untrue

if TYPE_CHECKING:
    from compatkit.registry.store import Store

Deciding = Callable[["Store"], Decide]
"""Returns the function that answers the questions of a registry's policies."""
TRIES = 100
"""How often a blob is copied again because a garbage collection took it."""


@attrs.frozen
class AdmissionInputs:
    """What the admission of a version depends on.

    Attributes:
        below: The previous version with its digest, or None.
        above: The next version of its major line with its digest, or None.
        question: What the policy of its name asks; None if no policy applies.
    """

    below: tuple[Version, str] | None
    above: tuple[Version, str] | None
    question: Question | None

    @property
    def basis(self) -> tuple[Any, ...]:
        """Values that decide the answer; if one changes, it is decided again."""
        question = self.question
        return self.below, self.above, question and (question.policy, question.previous, question.partners)


@attrs.define(eq=False)
class Admission:
    """Decides which copied versions a registry admits; their blobs have been copied.

    Attributes:
        store: Registry that receives them.
        coming: Incoming versions with name, number and digest, without those withdrawn in their source.
        bring: Copies a blob unless it is here; until a version refers to it, it may be garbage-collected.
        deciding: Makes the function that answers the questions of policies; None leaves them unanswered.
        unmeasured: Admit versions that were not measured, and record it in the log of the policy.
    """

    store: Store
    coming: list[Reference]
    bring: Callable[[str], object]
    deciding: Deciding | None = None
    unmeasured: bool = False
    _asker: Asker = attrs.field(init=False)
    _decide: Decide | None = attrs.field(init=False, default=None)
    _admitted: dict[Reference, tuple[Any, ...]] = attrs.field(init=False, factory=dict)
    _manifests: dict[str, Manifest] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Collect the versions here and the incoming ones."""
        store = self.store
        index = lambda: store.index  # noqa: E731 - reads better beside its use
        self._asker = Asker(self._manifest, store.references, index, store.policies, tuple(self.coming))

    def functions(self) -> list[str]:
        """Return the function digests of all parts whose measured results could answer the policies."""
        functions: set[str] = set()
        for reference in self.coming:
            question = self._inputs(reference).question
            for partner in question.partners if question is not None else ():
                wanted = (reference.digest, partner.reference.digest, partner.bound)
                here = (each for each in wanted if each and self.store.objects.size(each) is not None)
                functions.update(function_digest(self._manifest(each)) for each in here)
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
            fresh: dict[Reference, CompatkitError] = {}
            for done, reference in enumerate(self.coming):
                progress(done, len(self.coming), f"asking the policy of {reference}")
                try:
                    self._settle(reference)
                except EnvironmentFailure:
                    raise
                except CompatkitError as error:
                    fresh[reference] = error
            if not fresh:
                return refused
            refused |= fresh
            self.coming = [reference for reference in self.coming if reference not in fresh]
            self.__attrs_post_init__()

    def link(self, reference: Reference, create: Callable[[Callable[[], None]], bool]) -> bool:
        """Link a version if it may be added now.

        Args:
            reference: The version.
            create: Links it after calling its argument; returns False if the number is taken.

        Raises:
            CompatkitError: It is refused, as by ``_check``.
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
        """Decide again after linking; withdraw the version if one imported concurrently conflicts with it."""
        try:
            self._settle(reference)
        except CompatkitError as error:
            reason = " ".join(
                f"Conflicts with a version or policy that came in concurrently: {error}".split()
            )
            if reference.version is not None:
                self.store.references.withdraw(reference.name, reference.version, reason[:LONGEST])
            raise

    def _settle(self, reference: Reference) -> bool:
        """Decide on a version unless its inputs are unchanged; return whether it was decided now.

        Raises:
            CompatkitError: It is refused, as by ``_check``.
        """
        inputs = self._inputs(reference)
        if self._admitted.get(reference) == inputs.basis:
            return False
        self._check(reference, inputs)
        self._admitted[reference] = inputs.basis
        return True

    def _check(self, reference: Reference, inputs: AdmissionInputs) -> None:
        """Raise for a version that may not be added.

        Raises:
            VersionUntrue: Its number is too small a step from the previous version, or to the next one.
            PolicyBroken: It does not work with a released part.
            PolicyUndecided: It was not measured as the policy of its name asks.
            PolicyDataMissing: The images that the policy names are missing.
            FormatError: The policy of its name is damaged.
        """
        own = None if reference.version is None else (reference.version, str(reference.digest))
        for before, after in ((inputs.below, own), (own, inputs.above)):
            if before is None or after is None or before[1] == after[1]:
                continue
            if why := untrue(*((version, self._manifest(digest)) for version, digest in (before, after))):
                raise VersionUntrue(
                    f"{reference} does not fit among the versions of {self.store.root}: {why}. Its number cannot be "
                    "changed; publish the component there under a larger step.",
                    subject=str(reference),
                )
        question = inputs.question
        if question is None:
            return
        try:
            if question.is_open:
                self._answer(question)
            else:
                self._check_unmeasured(reference, inputs, question)
        except (PolicyUndecided, PolicyDataMissing):
            if not self.unmeasured or question.revision is None:
                raise
            self.store.policies.admit(question.revision.scope, reference)

    def _inputs(self, reference: Reference) -> AdmissionInputs:
        version = reference.version
        if version is None:
            return AdmissionInputs(None, None, None)
        alive = [each for each in self._asker.alive(reference.name) if each != version]
        below = max((each for each in alive if each < version), default=None)
        above = min((each for each in alive if each > version and each.major == version.major), default=None)
        sides = [each and (each, str(self._asker.digest(reference.name, each))) for each in (below, above)]
        return AdmissionInputs(sides[0], sides[1], self._question(reference, version))

    def _question(self, reference: Reference, version: Version) -> Question | None:
        gone = version in self.store.references.withdrawn(reference.name)
        if gone or self.store.policies.of(reference.name) is None:
            return None
        digest = str(reference.digest)
        return self._asker.ask(reference.name, self._manifest(digest), digest, version)

    def _answer(self, question: Question) -> None:
        if self.deciding is None:
            raise PolicyUndecided(
                f"{question.name}: the policy {question.policy} asks how this {question.kind} works with "
                f"{question.partner_names()}, and it was not measured. Measure it with "
                "`compatkit.components.deciding.deciding`, or admit it unmeasured (unmeasured=True, --unmeasured), "
                "which the log of the policy records.",
                subject=question,
            )
        self._decide = self._decide or self.deciding(self.store)
        self._decide(question)

    def _check_unmeasured(self, reference: Reference, inputs: AdmissionInputs, question: Question) -> None:
        """Require the step without a policy if there is nothing to measure, as no result supports new weights."""
        policy, below = question.policy, inputs.below
        if policy is None or below is None or reference.version is None or not policy.concerns(question.kind):
            return
        before, after = self._manifest(below[1]), self._manifest(str(reference.digest))
        if why := untrue((below[0], before), (reference.version, after), measured=False):
            raise PolicyUndecided(
                f"{reference.name}: the policy {policy} applies, {question.reason}, and no result supports it: {why}. "
                "Import the parts released against that version too, or admit it unmeasured (unmeasured=True, on the "
                "command line --unmeasured), which the log of the policy records.",
                subject=question,
            )

    def _manifest(self, digest: str) -> Manifest:
        if digest not in self._manifests:
            self._manifests[digest] = from_bytes(self._data(digest), what=f"manifest {digest}")
        return self._manifests[digest]

    def _data(self, digest: str) -> bytes:
        for _ in range(TRIES if any(digest == reference.digest for reference in self.coming) else 0):
            self.bring(digest)
            try:
                return self.store.objects.read(digest, most=MAX_BYTES)
            except IntegrityError:
                continue  # collected since
        return self.store.objects.read(digest, most=MAX_BYTES)


class _Outdated(Exception):
    """The inputs of the decision changed."""
