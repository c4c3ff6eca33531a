"""What is moved, and how: chosen once, for import, pull, push and clone."""

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
"""Takes a manifest's digest, its signatures as they were found, and ``name@version``; raises to refuse it."""
Refuse = Callable[[Reference, IntegrityError], None]
"""Called with a version that cannot be read, and why; may raise."""


def _silent(done: int, total: int, what: str) -> None:
    """Report to nobody."""


@attrs.frozen(kw_only=True)
class Choice:
    """What is moved, and how.

    Attributes:
        versions: ``"all"`` takes all versions of the names, withdrawn ones with tombstones; ``"latest"`` one each.
        aliases: Whether aliases of the names come along: they follow where the log of the source goes on from that
            of the target; a strict move sets them as they are in the source.
        evidence: Whether measured results of pairs come along, where both parts do.
        accept: Refuses a component before anything of it comes; a parent that it refuses comes without its name.
        deciding: Makes what answers the questions of policies, where components come into a folder; None: nobody.
        unmeasured: Let in what nobody measured as a policy asks; the log of the policy records it.
        jobs: Blobs that move at once.
        dry_run: Only say what would move.
        create: Whether a push makes the remote a registry if it is not one.
        strict: Raise at the first refusal, so that all is named or nothing, and verify what is there already; else
            refusals are listed and the rest comes.
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
        """Check what people write.

        Raises:
            UsageError: ``versions`` is neither of both, or ``jobs`` is no count.
        """
        if self.versions not in ("all", "latest"):
            raise UsageError(f"versions is 'all' or 'latest', got {self.versions!r}.")
        if self.jobs < 1:
            raise UsageError(f"jobs is the number of blobs that move at once, from 1; got {self.jobs}.")

    def requiring(self, trust: Trust) -> Choice:
        """Return this choice, which also refuses components without a signature that counts.

        Args:
            trust: Whose signatures count, as ``Registry.open`` takes it; False or None asks for none.

        Raises:
            KeyFileError: It cannot be found out whom to trust.
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
    """Return what patterns mean, each version once, by name and version.

    Args:
        references: Names and versions to choose from.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each.
        versions: ``"all"`` takes all versions of a name, withdrawn ones too; ``"latest"`` one each.
        refuse: Called with versions that cannot be read, so that the others can be taken; None raises.

    Raises:
        NotFound: A pattern matches nothing.
        IntegrityError: A version cannot be read, and ``refuse`` is None.
    """
    found = {one for pattern in patterns for one in _meant(references, pattern, versions, refuse)}
    return sorted(found, key=lambda one: (one.name, one.version or Version(0, 0, 0)))


def matching(pattern: str, known: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, among those that are known.

    Args:
        pattern: A reference whose name may be a glob; what follows the name is ignored.
        known: Names of components.

    Raises:
        InvalidName: Not written as a name or pattern.
    """
    glob = resolving.split(pattern)[0]
    if resolving.is_pattern(glob):
        return [name for name in known if fnmatchcase(name, glob)]
    return [name for name in known if name == check_name(glob)]


def _meant(
    references: References, pattern: str, versions: Versions, refuse: Refuse | None
) -> Iterator[Reference]:
    suffix = resolving.split(pattern)[1]
    every = versions == "all" and not suffix
    nothing = True
    for name in matching(pattern, references.names()):
        numbers = references.versions(name) if every else [None]
        for version in numbers:
            one = Reference.parse(f"{name}{suffix}") if version is None else Reference(name, version)
            try:
                if version is None:
                    yield resolving.resolve(references, one)
                else:  # a withdrawn one too
                    yield attrs.evolve(one, digest=references.digest(name, version))
            except NotFound:
                continue
            except IntegrityError as error:
                if refuse is None:
                    raise
                refuse(one, error)
            nothing = False
    if nothing:
        resolving.select(references, pattern)  # raises an error that says what there is
