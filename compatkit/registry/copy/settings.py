"""Settings of import, pull, push and clone, and the selection of versions by patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from compatkit.errors import IntegrityError, NotFound, UsageError
from compatkit.registry import Progress, resolving
from compatkit.registry.copy.admission import PolicyCheckFactory
from compatkit.registry.names import Reference, Version

if TYPE_CHECKING:
    from compatkit.registry.refs import References
    from compatkit.registry.remotes.objectstore import Site, SiteFiles
    from compatkit.registry.remotes.remote import Remote
    from compatkit.registry.signing.trust import Trust, Trusted
    from compatkit.registry.store import Store

Versions = Literal["all", "latest"]
Accept = Callable[[str, Sequence[bytes], str], None]
"""Function called with a manifest's digest, its unverified signatures and ``name@version``; raises to refuse it."""
Refuse = Callable[[Reference, IntegrityError], None]
"""Function called with an unreadable version and the error; may raise."""

SiteWriter = Callable[["Store", "Remote", "Site", list[str]], "SiteFiles"]
"""Function of the pushed registry, the remote, its site, and a list to which it adds notes for the user; returns the
changes of the site's files."""


def _ignore_progress(done: int, total: int, what: str) -> None:
    """Ignore progress."""


@attrs.frozen(kw_only=True)
class TransferSettings:
    """Settings of a transfer.

    Attributes:
        versions: ``"all"`` for all versions of each name, withdrawn ones with tombstones; ``"latest"`` for one each.
        aliases: Whether to copy aliases.
        follow_aliases: Whether to move aliases that the target has, and not only to add new ones.
        follow_withdrawals: Whether to withdraw and restore versions that the target has, and not only new ones.
        follow_results: Whether to copy further results of measurements that the target has.
        evidence: Whether to copy measured results of pairs if both components are copied.
        weights: Whether to copy weights; a local target without them fetches them from the origin when they are read.
        accept: Function that may refuse a component before it is copied; a refused parent is copied without its name.
        trusted: Keys of which one must have signed each copied alias move, withdrawal and restoration; each member of
            the tuple must be satisfied.
        policy_checks: Factory of the check of a local target's policies; None refuses versions that need a measurement.
        unmeasured: Whether to admit versions that were not measured as a policy requires; the policy's log records it.
        jobs: Number of blobs copied in parallel.
        dry_run: Whether to only report what would be copied.
        create: Whether to create a missing remote registry.
        site_files: Function that describes what a remote has to the visitors of its site; None leaves that as it is.
        strict: Whether to raise at the first refusal, so that all versions are added or none, and to verify existing
            blobs. If False, refusals are reported and the rest is copied.
        progress: Function called with done, total and a description.
    """

    versions: Versions = "all"
    aliases: bool = True
    follow_aliases: bool = False
    follow_withdrawals: bool = False
    follow_results: bool = False
    evidence: bool = True
    weights: bool = True
    accept: Accept | None = None
    trusted: tuple[Trusted, ...] = ()
    policy_checks: PolicyCheckFactory | None = None
    unmeasured: bool = False
    jobs: int = 8
    dry_run: bool = False
    create: bool = True
    site_files: SiteWriter | None = None
    strict: bool = False
    progress: Progress = attrs.field(
        default=_ignore_progress, converter=attrs.converters.default_if_none(_ignore_progress)
    )

    def __attrs_post_init__(self) -> None:
        """Check versions and jobs.

        Raises:
            UsageError: ``versions`` is unknown, or ``jobs`` is below 1.
        """
        if self.versions not in ("all", "latest"):
            raise UsageError(f"Expected versions='all' or 'latest', got {self.versions!r}.")
        if self.jobs < 1:
            raise UsageError(f"Expected jobs >= 1, got {self.jobs}.")

    def with_trust(self, trust: Trust) -> TransferSettings:
        """Return settings that also refuse components and changes without a trusted signature.

        Args:
            trust: Trusted keys, as for ``Registry.open``; False or None requires no signature.

        Raises:
            KeyFileError: The trusted keys cannot be read.
            MissingDependency: ``cryptography`` is not installed.
        """
        if trust is None or trust is False:
            return self
        from compatkit.registry.signing.checks import require
        from compatkit.registry.signing.trust import Trusted

        keys = Trusted.of(trust)
        check_signatures, other = require(keys), self.accept

        def accept(digest: str, signatures: Sequence[bytes], name: str) -> None:
            check_signatures(digest, signatures, name)
            if other is not None:
                other(digest, signatures, name)

        return attrs.evolve(self, accept=accept, trusted=(*self.trusted, keys))

    def following(self) -> TransferSettings:
        """Return settings that also change what exists in the target, as a push does."""
        return attrs.evolve(self, follow_aliases=True, follow_withdrawals=True, follow_results=True)


def select_versions(
    references: References, patterns: Iterable[str], versions: Versions, refuse: Refuse | None = None
) -> list[Reference]:
    """Return the versions that patterns select, each once, sorted by name and number.

    Args:
        references: Names and versions to select from.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each.
        versions: ``"all"`` for all versions of each name, withdrawn ones too; ``"latest"`` for one each.
        refuse: Called with unreadable versions, which are left out; None raises.

    Raises:
        NotFound: A pattern matches nothing.
        IntegrityError: A version cannot be read, and ``refuse`` is None.
    """
    selected = {
        reference for pattern in patterns for reference in _select(references, pattern, versions, refuse)
    }
    return sorted(selected, key=lambda reference: (reference.name, reference.version or Version(0, 0, 0)))


def _select(
    references: References, pattern: str, versions: Versions, refuse: Refuse | None
) -> Iterator[Reference]:
    suffix = resolving.split(pattern)[1]
    all_versions = versions == "all" and not suffix
    is_empty = True
    for name in resolving.matching_names(pattern, references.names()):
        for version in references.versions(name) if all_versions else [None]:
            reference = Reference.parse(f"{name}{suffix}") if version is None else Reference(name, version)
            try:
                if version is None:
                    yield resolving.resolve(references, reference)
                else:  # includes withdrawn versions
                    yield attrs.evolve(reference, digest=references.digest(name, version))
            except NotFound:
                continue
            except IntegrityError as error:
                if refuse is None:
                    raise
                refuse(reference, error)
            is_empty = False
    if is_empty:
        resolving.select(references, pattern)  # raises an error that lists the known names
