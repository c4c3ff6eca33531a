"""Questions of policies: with which released parts a new version must be measured before it may be published.

**Released against.** A head is released against an extractor where its ``trained_with`` parent is that extractor, or
one with the same function: a PATCH is the same extractor, so a head of 1.0.0 is released against 1.0.1 too. Only
versions that were not withdrawn count, on both sides, and of several with one function only the last.

**Partners.** Under ``backward`` those of a new extractor are the heads released against the version just below its
number (``_transitive``: against any earlier version), each with the extractor that it was trained with as its bound.
Under ``forward`` those of a new head are all released versions of the lines to which the extractors belong that its
previous version (``_transitive``: any earlier one) was trained with; a line is a name and a MAJOR number, and across
majors the name alone. The bound is the new head on its own extractor.

**Within one MAJOR.** Earlier versions of other MAJOR lines are not looked at, and the first version of a line is not
bound, unless the policy holds across majors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.manifest import TRAINED, Manifest, function_digest, trained_with
from compatkit.errors import IntegrityError
from compatkit.registry.names import Reference, Version
from compatkit.registry.policies import Policy
from compatkit.registry.policylog import PolicyLog, Revision
from compatkit.registry.refs import References

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import Index

SHOWN = 8
"""Partners that a message lists."""


@attrs.frozen(order=False)
class Partner:
    """A released part that a candidate must work with.

    Attributes:
        reference: Name, version and digest.
        bound: Manifest digest of the extractor that the head of the pair was trained with; None if the head names
            none; there is no bound then.
    """

    reference: Reference
    bound: str | None


@attrs.frozen
class Question:
    """What a policy asks of one candidate, given the registry at that moment. Equal questions have equal answers.

    Attributes:
        name: Name that the candidate is published under.
        kind: Kind of the candidate.
        candidate: Its manifest digest.
        revision: The policy that binds the name; None if there is none.
        previous: The version that the candidate would follow; None for the first.
        partners: Parts that it must work with; empty if nothing needs measuring.
        reason: Why nothing needs measuring; empty if something does.
    """

    name: str
    kind: str
    candidate: str
    revision: Revision | None = None
    previous: Reference | None = None
    partners: tuple[Partner, ...] = ()
    reason: str = ""

    @property
    def policy(self) -> Policy | None:
        """The policy that binds the name, None if there is none."""
        return self.revision.policy if self.revision is not None else None

    @property
    def is_open(self) -> bool:
        """Whether something must be measured before the candidate may be published."""
        return bool(self.partners)

    def partner_names(self) -> str:
        """Return the partners for a message: the first few, and how many more there are."""
        shown = [str(partner.reference) for partner in self.partners]
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        return f"{', '.join(shown[:SHOWN])}{more}"


class Vanished(IntegrityError):
    """A version vanished while it was read: without hard links, its publisher removed it again after checking."""


@attrs.frozen(eq=False)
class Asker:
    """Answers what policies ask of a candidate; reads manifests, never weights.

    Versions that are coming from elsewhere count as if all of them were released: the answer does not depend on the
    order in which they are named, and a head that comes together with an extractor counts for it.

    Attributes:
        manifest: Returns the manifest of a digest.
        references: Names and versions.
        index: Returns the index, which is opened only if a policy asks for something.
        policies: The registry's policies.
        coming: Versions that are about to be named, with their digests; none of them is withdrawn at its source.
    """

    manifest: Callable[[str], Manifest]
    references: References
    index: Callable[[], Index]
    policies: PolicyLog
    coming: Sequence[Reference] = ()
    _coming: dict[str, dict[Version, str]] = attrs.field(init=False, factory=lambda: defaultdict(dict))
    _trained: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        for reference in self.coming:
            if reference.version is not None:
                self._coming[reference.name][reference.version] = str(reference.digest)

    def ask(
        self,
        name: str,
        manifest: Manifest,
        digest: str,
        version: Version | None,
        *,
        major: bool = False,
    ) -> Question:
        """Return what the policy of a name asks of a candidate.

        Args:
            name: Name to publish under.
            manifest: The candidate.
            digest: Digest of the manifest.
            version: Version number to publish as; None for the next after the latest version.
            major: Whether the candidate begins the next MAJOR line.

        Raises:
            FormatError: The policy is damaged.
            IntegrityError: A manifest that the answer depends on is missing or damaged.
        """
        question = Question(name, manifest.kind, digest, self.policies.of(name))
        policy = question.policy
        if policy is None:
            return attrs.evolve(question, reason="no policy binds this name")
        if not policy.concerns(manifest.kind):
            return attrs.evolve(question, reason=policy.unconcerned(manifest.kind))
        earlier = [number for number in self.alive(name) if version is None or number < version]
        if not earlier:
            return attrs.evolve(question, reason="it is the first version")
        previous = self._reference(name, earlier[-1])
        question = attrs.evolve(question, previous=previous)
        if not policy.across_major:
            if major or (version is not None and version.major != earlier[-1].major):
                return attrs.evolve(
                    question, reason="it begins a new MAJOR line, which the policy does not bind"
                )
            earlier = [number for number in earlier if number.major == earlier[-1].major]
        if function_digest(self.manifest(str(previous.digest))) == function_digest(manifest):
            return attrs.evolve(
                question, reason=f"it has the function of {previous.version}, which is released"
            )
        counted = earlier if policy.transitive else earlier[-1:]
        find = self._heads if manifest.kind == "extractor" else self._extractors
        partners = tuple(find(name, counted, manifest, policy))
        which = "an earlier version" if policy.transitive else str(previous.version)
        none = (
            f"no head is released against {which}"
            if manifest.kind == "extractor"
            else f"no extractor of a line that {which} was trained with is released"
        )
        return attrs.evolve(question, partners=partners, reason="" if partners else none)

    def _heads(
        self, name: str, earlier: list[Version], candidate: Manifest, policy: Policy
    ) -> Iterator[Partner]:
        """Yield the heads released against versions of an extractor, by name and version."""
        wanted = {self._function(name, released) for released in earlier}
        # of all versions, withdrawn and of other lines too: a PATCH of them may be the one that counts
        digests = {
            str(digest)
            for version in self._versions(name)
            if (digest := self.digest(name, version)) is not None
            and function_digest(self.manifest(digest)) in wanted
        }
        partners: dict[tuple[str, str, str], Partner] = {}
        for digest in sorted(digests):
            bound = function_digest(self.manifest(digest))
            for reference in self._released_heads(digest):
                key = reference.name, function_digest(self.manifest(str(reference.digest))), bound
                partners[key] = _later(partners.get(key), Partner(reference, digest))
        yield from _sorted(partners.values())

    def _extractors(
        self, name: str, earlier: list[Version], candidate: Manifest, policy: Policy
    ) -> Iterator[Partner]:
        """Yield the released extractors of the lines that versions of a head were trained with."""
        own = next(trained_with(candidate), None)
        lines = {line for released in earlier for line in self._lines(name, released, policy)}
        partners: dict[tuple[str, str], Partner] = {}
        for extractor, major in sorted(lines, key=str):
            for version in self.alive(extractor):
                if major is None or version.major == major:
                    reference = self._reference(extractor, version)
                    manifest = self.manifest(str(reference.digest))
                    if manifest.kind == "extractor":
                        key = extractor, function_digest(manifest)
                        partners[key] = _later(partners.get(key), Partner(reference, own))
        yield from _sorted(partners.values())

    def _lines(self, head: str, version: Version, policy: Policy) -> Iterator[tuple[str, int | None]]:
        """Yield name and MAJOR number of each line that a version of a head was trained with."""
        manifest = self.manifest(str(self._reference(head, version).digest))
        parents = set(trained_with(manifest))
        for name, digest in self._named(parents) if parents else ():
            for number in self._versions(name):
                if self.digest(name, number) == digest:
                    yield name, None if policy.across_major else number.major

    def alive(self, name: str) -> list[Version]:
        """Return the versions of a name that were not withdrawn, rising."""
        return sorted(set(self._versions(name)) - self.references.withdrawn(name))

    def digest(self, name: str, version: Version) -> str | None:
        """Return the manifest digest of a version, None if there is none; what is here counts before what is coming.

        Args:
            name: Of the component.
            version: Of the component.
        """
        existing = self.references.digest(name, version)
        return existing if existing is not None else self._coming[name].get(version)

    def _versions(self, name: str) -> list[Version]:
        return sorted({*self.references.versions(name), *self._coming[name]})

    def _named(self, digests: set[str]) -> Iterator[tuple[str, str]]:
        """Yield name and digest of every manifest among ``digests`` that has, or gets, a name."""
        coming = [(reference.name, str(reference.digest)) for reference in self.coming]
        yield from dict.fromkeys(root for root in (*self.index().roots(), *coming) if root[1] in digests)

    def _released_heads(self, extractor: str) -> Iterator[Reference]:
        """Yield the heads that are not withdrawn and whose ``trained_with`` parent is a manifest."""
        if not self._trained:
            for head in self.coming:
                manifest = self.manifest(str(head.digest))
                for parent in trained_with(manifest) if manifest.kind == "head" else ():
                    self._trained.setdefault(parent, []).append(head)
        here = (
            Reference(head.name, Version.parse(head.version), digest=head.digest)
            for head in self.index().search(kind="head", parent=extractor)
            if (TRAINED, extractor) in head.parents
        )
        gone = {name: self.references.withdrawn(name) for name in self._coming}
        coming = (head for head in self._trained.get(extractor, ()) if head.version not in gone[head.name])
        yield from {str(head): head for head in (*here, *coming)}.values()

    def _reference(self, name: str, version: Version) -> Reference:
        digest = self.digest(name, version)
        if digest is None:
            raise Vanished(
                f"{name}@{version} vanished while it was read; the registry is being changed by hand."
            )
        return Reference(name, version, digest=digest)

    def _function(self, name: str, version: Version) -> str:
        return function_digest(self.manifest(str(self._reference(name, version).digest)))


def _later(known: Partner | None, other: Partner) -> Partner:
    if known is None:
        return other
    return max(known, other, key=lambda partner: _order(partner)[1])


def _sorted(partners: Iterable[Partner]) -> list[Partner]:
    return sorted(partners, key=_order)


def _order(partner: Partner) -> tuple[str, Version, str]:
    return partner.reference.name, partner.reference.version or Version(0, 0, 0), partner.bound or ""
