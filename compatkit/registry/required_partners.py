"""Find the released parts that a policy requires a new version to be measured with before it is published.

**Released against.** A head is released against an extractor if its ``trained_with`` parent is that extractor, or an
extractor with the same function. A PATCH has the same function, so a head of 1.0.0 is released against 1.0.1 too.
Withdrawn extractors and heads do not count. Among versions with the same function only the last counts.

**Partners of a new extractor** (``backward``): the heads released against the version just below its number
(``_transitive``: against any earlier version). The bound of each head is the extractor that it was trained with.

**Partners of a new head** (``forward``): take the extractors that its previous version (``_transitive``: any earlier
version) was trained with, and all released versions of their lines. A line is a name with a MAJOR number; for a policy
across majors it is the name alone. The bound is the new head on its own extractor.

**Within one MAJOR.** Unless the policy holds across majors, versions of other MAJOR lines are ignored, and the first
version of a line needs no measurement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.manifest import TRAINED_WITH, Manifest, function_digest, trained_with
from compatkit.errors import IntegrityError
from compatkit.registry.names import Reference, Version
from compatkit.registry.policylog import PolicyLog, Revision
from compatkit.registry.refs import References

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import Index
    from compatkit.registry.policies import Policy

MAX_LISTED = 8
"""Maximum number of partners listed in a message."""


@attrs.frozen(order=False)
class Partner:
    """A released part that a candidate must work with.

    Attributes:
        reference: Name, version and digest.
        bound: Manifest digest of the extractor that the head of the pair was trained with; None if the head names
            no extractor, so that there is no bound.
    """

    reference: Reference
    bound: str | None


@attrs.frozen
class PolicyRequirement:
    """Measurements that a policy requires of a candidate, for one state of the registry.

    Equal requirements have equal results.

    Attributes:
        name: Name that the candidate is published under.
        kind: Kind of the candidate.
        candidate: Manifest digest of the candidate.
        revision: Policy that applies to the name; None without a policy.
        previous: Version just before the candidate; None for a first version.
        partners: Parts that the candidate must work with; empty if nothing needs measuring.
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
        """Policy that applies to the name; None without a policy."""
        return self.revision.policy if self.revision is not None else None

    @property
    def is_open(self) -> bool:
        """Whether something must be measured before the candidate may be published."""
        return bool(self.partners)

    def partner_names(self) -> str:
        """Return the first partners and the number of the others, for a message."""
        shown = [str(partner.reference) for partner in self.partners]
        more = f" and {len(shown) - MAX_LISTED} more" if len(shown) > MAX_LISTED else ""
        return f"{', '.join(shown[:MAX_LISTED])}{more}"


class VersionRemoved(IntegrityError):
    """A version disappeared while it was read: without hard links, a publisher may remove it after its last check."""


@attrs.frozen(eq=False)
class PartnerFinder:
    """Finds the measurements that a policy requires of a candidate; reads manifests, never weights.

    Versions that are about to be imported count as released. So the result does not depend on the order of the import,
    and a head that is imported together with an extractor counts for it.

    Attributes:
        manifest: Returns the manifest of a digest.
        references: Names and versions.
        index: Opens the search index; called only if a policy requires partners.
        policies: Policies of the registry.
        incoming: Versions that are about to be imported, with their digests; none is withdrawn in its source.
    """

    manifest: Callable[[str], Manifest]
    references: References
    index: Callable[[], Index]
    policies: PolicyLog
    incoming: Sequence[Reference] = ()
    _incoming: dict[str, dict[Version, str]] = attrs.field(init=False, factory=lambda: defaultdict(dict))
    _trained: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        for reference in self.incoming:
            if reference.version is not None:
                self._incoming[reference.name][reference.version] = str(reference.digest)

    def requirement(
        self,
        name: str,
        manifest: Manifest,
        digest: str,
        version: Version | None,
        *,
        major: bool = False,
    ) -> PolicyRequirement:
        """Return the measurements that the policy of a name requires of a candidate.

        Args:
            name: Name to publish under.
            manifest: Manifest of the candidate.
            digest: Digest of the manifest.
            version: Version number to publish as; None for the next after the latest version.
            major: Whether the candidate begins the next MAJOR line.

        Raises:
            FormatError: The policy is damaged.
            IntegrityError: A manifest that the result depends on is missing or damaged.
        """
        requirement = PolicyRequirement(name, manifest.kind, digest, self.policies.of(name))
        policy = requirement.policy
        if policy is None:
            return attrs.evolve(requirement, reason="no policy binds this name")
        if not policy.concerns(manifest.kind):
            return attrs.evolve(requirement, reason=policy.unconcerned(manifest.kind))
        earlier = [number for number in self.alive(name) if version is None or number < version]
        if not earlier:
            return attrs.evolve(requirement, reason="it is the first version")
        previous = self._reference(name, earlier[-1])
        requirement = attrs.evolve(requirement, previous=previous)
        if not policy.across_major:
            if major or (version is not None and version.major != earlier[-1].major):
                return attrs.evolve(
                    requirement, reason="it begins a new MAJOR line, which the policy does not bind"
                )
            earlier = [number for number in earlier if number.major == earlier[-1].major]
        if function_digest(self.manifest(str(previous.digest))) == function_digest(manifest):
            return attrs.evolve(
                requirement, reason=f"it has the function of {previous.version}, which is released"
            )
        counted = earlier if policy.transitive else earlier[-1:]
        which = "an earlier version" if policy.transitive else str(previous.version)
        if manifest.kind == "extractor":
            partners = self._heads(name, counted)
            none = f"no head is released against {which}"
        else:
            partners = self._extractors(name, counted, manifest, policy)
            none = f"no extractor of a line that {which} was trained with is released"
        return attrs.evolve(requirement, partners=partners, reason="" if partners else none)

    def _heads(self, name: str, earlier: list[Version]) -> tuple[Partner, ...]:
        """Return the heads released against versions of an extractor, sorted by name and version."""
        functions = {
            function_digest(self.manifest(str(self._reference(name, version).digest))) for version in earlier
        }
        # withdrawn versions and other lines too: a head may be trained with another version of the same function
        digests = {
            str(digest)
            for version in self._versions(name)
            if (digest := self.digest(name, version)) is not None
            and function_digest(self.manifest(digest)) in functions
        }
        partners: dict[tuple[str, str, str], Partner] = {}
        for digest in sorted(digests):
            bound = function_digest(self.manifest(digest))
            for reference in self._released_heads(digest):
                key = reference.name, function_digest(self.manifest(str(reference.digest))), bound
                partners[key] = _later(partners.get(key), Partner(reference, digest))
        return tuple(sorted(partners.values(), key=_order))

    def _extractors(
        self, name: str, earlier: list[Version], candidate: Manifest, policy: Policy
    ) -> tuple[Partner, ...]:
        """Return the released extractors of the lines that versions of a head were trained with."""
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
        return tuple(sorted(partners.values(), key=_order))

    def _lines(self, head: str, version: Version, policy: Policy) -> Iterator[tuple[str, int | None]]:
        """Yield the name and MAJOR number of each line that a version of a head was trained with."""
        manifest = self.manifest(str(self._reference(head, version).digest))
        parents = set(trained_with(manifest))
        for name, digest in self._named(parents) if parents else ():
            for number in self._versions(name):
                if self.digest(name, number) == digest:
                    yield name, None if policy.across_major else number.major

    def alive(self, name: str) -> list[Version]:
        """Return the versions of a name in ascending order, without withdrawn ones."""
        return sorted(set(self._versions(name)) - self.references.withdrawn(name))

    def digest(self, name: str, version: Version) -> str | None:
        """Return the manifest digest of a version in the registry, else among the versions to import, else None."""
        existing = self.references.digest(name, version)
        return existing if existing is not None else self._incoming[name].get(version)

    def _versions(self, name: str) -> list[Version]:
        return sorted({*self.references.versions(name), *self._incoming[name]})

    def _named(self, digests: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the names, with digest, of manifests; names that are about to be imported count too."""
        incoming = [(reference.name, str(reference.digest)) for reference in self.incoming]
        yield from dict.fromkeys(root for root in (*self.index().roots(), *incoming) if root[1] in digests)

    def _released_heads(self, extractor: str) -> Iterator[Reference]:
        """Yield the heads trained with an extractor, without withdrawn ones."""
        if not self._trained:
            for head in self.incoming:
                manifest = self.manifest(str(head.digest))
                for parent in trained_with(manifest) if manifest.kind == "head" else ():
                    self._trained.setdefault(parent, []).append(head)
        registered = (
            Reference(head.name, Version.parse(head.version), digest=head.digest)
            for head in self.index().search(kind="head", parent=extractor)
            if (TRAINED_WITH, extractor) in head.parents
        )
        withdrawn = {name: self.references.withdrawn(name) for name in self._incoming}
        incoming = (
            head for head in self._trained.get(extractor, ()) if head.version not in withdrawn[head.name]
        )
        yield from {str(head): head for head in (*registered, *incoming)}.values()

    def _reference(self, name: str, version: Version) -> Reference:
        digest = self.digest(name, version)
        if digest is None:
            raise VersionRemoved(f"{name}@{version} was removed by another process while it was read.")
        return Reference(name, version, digest=digest)


def _later(known: Partner | None, other: Partner) -> Partner:
    """Return the partner with the higher version."""
    if known is None:
        return other
    return max(known, other, key=lambda partner: _order(partner)[1])


def _order(partner: Partner) -> tuple[str, Version, str]:
    return partner.reference.name, partner.reference.version or Version(0, 0, 0), partner.bound or ""
