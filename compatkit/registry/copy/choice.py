"""Options of import, pull, push and clone, and the versions that patterns select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

import attrs

from compatkit.errors import IntegrityError, NotFound, UsageError
from compatkit.registry import Progress, resolving
from compatkit.registry.copy.admission import Deciding
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import References

if TYPE_CHECKING:
    from compatkit.registry.signing.trust import Trust

Versions = Literal["all", "latest"]
Accept = Callable[[str, Sequence[bytes], str], None]
"""Function of a manifest's digest, its unverified signatures and ``name@version`` that raises to refuse it."""
Refuse = Callable[[Reference, IntegrityError], None]
"""Function called with an unreadable version and the error; may raise."""


def _silent(done: int, total: int, what: str) -> None:
    """Report no progress."""


@attrs.frozen(kw_only=True)
class Choice:
    """Options of a transfer.

    Attributes:
        versions: ``"all"`` takes all versions of the names, withdrawn ones with tombstones; ``"latest"`` one each.
        aliases: Whether to move aliases whose log in the target is the beginning of that in the source.
        evidence: Whether to copy measured results of pairs whose parts are both copied.
        accept: Refuses a component before any of it is copied; a refused parent is copied without its name.
        deciding: Makes the function that answers policies of a local target; None leaves them unanswered.
        unmeasured: Whether to admit versions not measured as a policy requires; the policy's log records it.
        jobs: Number of blobs copied at the same time.
        dry_run: Whether to only report what would be copied.
        create: Whether a push creates the remote registry if it is missing.
        strict: Whether to raise at the first refusal, so that all versions are added or none, and to verify existing
            blobs. Else refusals are listed and the rest is copied.
        progress: Called with done, total and what is being done.
    """

    versions: Versions = "all"
    aliases: bool = True
    evidence: bool = True
    accept: Accept | None = None
    deciding: Deciding | None = None
    unmeasured: bool = False
    jobs: int = 8
    dry_run: bool = False
    create: bool = True
    strict: bool = False
    progress: Progress = attrs.field(default=_silent, converter=attrs.converters.default_if_none(_silent))

    def __attrs_post_init__(self) -> None:
        """Check versions and jobs.

        Raises:
            UsageError: ``versions`` is unknown, or ``jobs`` is below 1.
        """
        if self.versions not in ("all", "latest"):
            raise UsageError(f"Expected versions='all' or 'latest', got {self.versions!r}.")
        if self.jobs < 1:
            raise UsageError(f"Expected jobs >= 1, got {self.jobs}.")

    def requiring(self, trust: Trust) -> Choice:
        """Return a choice that also refuses components without a trusted signature.

        Args:
            trust: Trusted keys, as for ``Registry.open``; False or None requires no signature.

        Raises:
            KeyFileError: The trusted keys cannot be read.
            MissingDependency: ``cryptography`` is not installed.
        """
        if trust is None or trust is False:
            return self
        from compatkit.registry.signing.judging import require

        signed, other = require(trust), self.accept

        def accept(digest: str, signatures: Sequence[bytes], name: str) -> None:
            signed(digest, signatures, name)
            if other is not None:
                other(digest, signatures, name)

        return attrs.evolve(self, accept=accept)


def chosen(
    references: References, patterns: Iterable[str], versions: Versions, refuse: Refuse | None = None
) -> list[Reference]:
    """Return the versions that patterns select, each once, sorted by name and number.

    Args:
        references: Names and versions to choose from.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each.
        versions: ``"all"`` takes all versions of a name, withdrawn ones too; ``"latest"`` one each.
        refuse: Called with unreadable versions, which are left out; None raises.

    Raises:
        NotFound: A pattern matches nothing.
        IntegrityError: A version cannot be read, and ``refuse`` is None.
    """
    selected = {
        reference for pattern in patterns for reference in _selected(references, pattern, versions, refuse)
    }
    return sorted(selected, key=lambda reference: (reference.name, reference.version or Version(0, 0, 0)))


def matching(pattern: str, known: Iterable[str]) -> list[str]:
    """Return the known names that a pattern matches.

    Args:
        pattern: Reference whose name may be a glob; version and alias are ignored.
        known: Names of components.

    Raises:
        InvalidName: Not a valid name or pattern.
    """
    glob = resolving.split(pattern)[0]
    if resolving.is_pattern(glob):
        return [name for name in known if fnmatchcase(name, glob)]
    return [name for name in known if name == check_name(glob)]


def _selected(
    references: References, pattern: str, versions: Versions, refuse: Refuse | None
) -> Iterator[Reference]:
    suffix = resolving.split(pattern)[1]
    every = versions == "all" and not suffix
    nothing = True
    for name in matching(pattern, references.names()):
        for version in references.versions(name) if every else [None]:
            reference = Reference.parse(f"{name}{suffix}") if version is None else Reference(name, version)
            try:
                if version is None:
                    yield resolving.resolve(references, reference)
                else:  # also a withdrawn one
                    yield attrs.evolve(reference, digest=references.digest(name, version))
            except NotFound:
                continue
            except IntegrityError as error:
                if refuse is None:
                    raise
                refuse(reference, error)
            nothing = False
    if nothing:
        resolving.select(references, pattern)  # raises an error that lists the known names
