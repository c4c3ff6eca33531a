"""Whether versions from elsewhere get their names here: their numbers must be true, and policies answered.

Nobody who copies can choose the number: it belongs to the version. So what would be a larger step at publish is a
refusal here. All that comes together is looked at as if it were released already, so that the answer does not depend on
an order; what is refused is left out then, and the rest looked at again. As at publish, what the answer rests on is
looked at again right before a version is linked and right after.
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
"""Returns what answers the questions of a registry's policies."""
TRIES = 100
"""How often what comes is brought again because somebody collects unused blobs."""


@attrs.frozen
class Standing:
    """What the admission of a version rests on.

    Attributes:
        below: The version that it follows, with its digest; None where there is none.
        above: The version of its major line that follows it, with its digest; None where there is none.
        question: What the policy of its name asks; None where no policy binds it.
    """

    below: tuple[Version, str] | None
    above: tuple[Version, str] | None
    question: Question | None

    @property
    def basis(self) -> tuple[Any, ...]:
        """What another answer would follow from."""
        asked = self.question
        return self.below, self.above, asked and (asked.policy, asked.previous, asked.partners)


@attrs.define(eq=False)
class Admission:
    """Decides on versions that come into a registry; their blobs have come.

    Attributes:
        store: Where they are to be named.
        coming: All that come, with name, version and digest, without those that are withdrawn where they come from.
        bring: Makes sure that a blob of theirs is here: nothing refers to it yet, and it may be collected.
        deciding: Makes what answers the questions of policies; None leaves them unanswered.
        unmeasured: Let in what nobody measured, and write that into the log of the policy.
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
        """See what is here, and what comes."""
        store = self.store
        index = lambda: store.index  # noqa: E731 - reads better beside its use
        self._asker = Asker(self._manifest, store.references, index, store.policies, tuple(self.coming))

    def functions(self) -> list[str]:
        """Return the function digests of all parts whose measurement would answer what is asked of those that come."""
        found: set[str] = set()
        for one in self.coming:
            question = self._standing(one).question
            for partner in question.partners if question is not None else ():
                wanted = (one.digest, partner.reference.digest, partner.bound)
                here = (each for each in wanted if each and self.store.objects.size(each) is not None)
                found.update(function_digest(self._manifest(each)) for each in here)
        return sorted(found)

    def check_all(self, progress: Callable[[int, int, str], None]) -> dict[Reference, CompatkitError]:
        """Return which versions may not come in, and why; the others are looked at again without them.

        Args:
            progress: Called with done, total and what is being done.

        Raises:
            EnvironmentFailure: Disk or network failed.
        """
        refused: dict[Reference, CompatkitError] = {}
        while True:
            fresh: dict[Reference, CompatkitError] = {}
            for place, one in enumerate(self.coming):
                progress(place, len(self.coming), f"asking the policy of {one}")
                try:
                    self._settle(one)
                except EnvironmentFailure:
                    raise
                except CompatkitError as error:
                    fresh[one] = error
            if not fresh:
                return refused
            refused |= fresh
            self.coming = [one for one in self.coming if one not in fresh]
            self.__attrs_post_init__()

    def link(self, one: Reference, create: Callable[[Callable[[], None]], bool]) -> bool:
        """Link a version if it may come in, as things are at this moment.

        Args:
            one: The version.
            create: Links it, after calling what it is given; returns False where the number is taken.

        Raises:
            CompatkitError: It may not, as for ``_check``.
        """
        while True:
            if self._settle(one):
                continue  # that may have taken long: look again

            def ready() -> None:
                if self._admitted[one] != self._standing(one).basis:
                    raise _Outdated

            try:
                made = create(ready)
            except _Outdated:
                continue
            if made:
                self._look_back(one)
            return made

    def _look_back(self, one: Reference) -> None:
        """Check the version against what was linked concurrently; withdraw it on a conflict, as a publish does."""
        try:
            self._settle(one)
        except CompatkitError as error:
            reason = " ".join(
                f"Conflicts with a version or policy that came in concurrently: {error}".split()
            )
            if one.version is not None:
                self.store.references.withdraw(one.name, one.version, reason[:LONGEST])
            raise

    def _settle(self, one: Reference) -> bool:
        """Decide on a version unless that was done on the same grounds; return whether it was decided now.

        Raises:
            CompatkitError: It may not come in, as for ``_check``.
        """
        standing = self._standing(one)
        if self._admitted.get(one) == standing.basis:
            return False
        self._check(one, standing)
        self._admitted[one] = standing.basis
        return True

    def _check(self, one: Reference, standing: Standing) -> None:
        """Refuse a version that may not come in.

        Raises:
            VersionUntrue: Its number lies about the step from the version below it, or to the one above.
            PolicyBroken: It does not work with a released part.
            PolicyUndecided: Nobody measured it as the policy of its name asks.
            PolicyDataMissing: The images that decide are not at hand.
            FormatError: The policy of its name is damaged.
        """
        own = None if one.version is None else (one.version, str(one.digest))
        for before, after in ((standing.below, own), (own, standing.above)):
            if before is None or after is None or before[1] == after[1]:
                continue
            if why := untrue(*((version, self._manifest(digest)) for version, digest in (before, after))):
                raise VersionUntrue(
                    f"{one} does not fit among the versions of {self.store.root}: {why}. Its number cannot be changed; "
                    "publish the component there under a larger step.",
                    subject=str(one),
                )
        question = standing.question
        if question is None:
            return
        try:
            if question.is_open:
                self._answer(question)
            else:
                self._check_unmeasured(one, standing, question)
        except (PolicyUndecided, PolicyDataMissing):
            if not self.unmeasured or question.revision is None:
                raise
            self.store.policies.admit(question.revision.scope, one)

    def _standing(self, one: Reference) -> Standing:
        version = one.version
        if version is None:
            return Standing(None, None, None)
        alive = [each for each in self._asker.alive(one.name) if each != version]
        below = max((each for each in alive if each < version), default=None)
        above = min((each for each in alive if each > version and each.major == version.major), default=None)
        sides = [each and (each, str(self._asker.digest(one.name, each))) for each in (below, above)]
        return Standing(sides[0], sides[1], self._question(one, version))

    def _question(self, one: Reference, version: Version) -> Question | None:
        gone = version in self.store.references.withdrawn(one.name)
        if gone or self.store.policies.of(one.name) is None:
            return None
        digest = str(one.digest)
        return self._asker.ask(one.name, self._manifest(digest), digest, version)

    def _answer(self, question: Question) -> None:
        if self.deciding is None:
            raise PolicyUndecided(
                f"{question.name}: the policy {question.policy} asks how this {question.kind} works with "
                f"{question.partner_names()}, and nobody looked. Let `compatkit.components.deciding.deciding` look, "
                "or let it in as it is (unmeasured=True, --unmeasured), which the log of the policy tells.",
                subject=question,
            )
        self._decide = self._decide or self.deciding(self.store)
        self._decide(question)

    def _check_unmeasured(self, one: Reference, standing: Standing, question: Question) -> None:
        """Hold new weights to the step without a policy where nothing is to be measured: nothing vouches for them."""
        policy, below = question.policy, standing.below
        if policy is None or below is None or one.version is None or not policy.concerns(question.kind):
            return
        before, after = self._manifest(below[1]), self._manifest(str(one.digest))
        if why := untrue((below[0], before), (one.version, after), measured=False):
            raise PolicyUndecided(
                f"{one.name}: the policy {policy} binds it, and {question.reason}, so that nothing vouches for it: "
                f"{why}. Bring the parts along that were released against that version, or let it in as it is "
                "(unmeasured=True, on the command line --unmeasured), which the log of the policy tells.",
                subject=question,
            )

    def _manifest(self, digest: str) -> Manifest:
        if digest not in self._manifests:
            self._manifests[digest] = from_bytes(self._data(digest), what=f"manifest {digest}")
        return self._manifests[digest]

    def _data(self, digest: str) -> bytes:
        for _ in range(TRIES if any(digest == one.digest for one in self.coming) else 0):
            self.bring(digest)
            try:
                return self.store.objects.read(digest, most=MAX_BYTES)
            except IntegrityError:
                continue  # collected since
        return self.store.objects.read(digest, most=MAX_BYTES)


class _Outdated(Exception):
    """Something was linked, or a policy changed, that the admission rests on."""
