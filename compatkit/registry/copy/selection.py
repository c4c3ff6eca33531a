"""Which versions of another registry are meant: all of the names that a pattern matches, or one of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Literal

from compatkit.errors import IntegrityError, NotFound, UsageError
from compatkit.registry import resolving
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import References

Versions = Literal["all", "latest"]
Refuse = Callable[[Reference, IntegrityError], None]
"""Is told which version cannot be read, and why; may raise."""


def chosen(
    references: References,
    patterns: Iterable[str],
    versions: Versions,
    refuse: Refuse | None = None,
) -> list[Reference]:
    """Return what patterns mean, each version once, by name and version.

    Args:
        references: Where they are.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each.
        versions: ``"all"`` takes all versions of a name, withdrawn ones too; ``"latest"`` one each.
        refuse: Is told of versions that cannot be read, so that the others can be taken; None raises.

    Raises:
        NotFound: A pattern matches nothing.
        IntegrityError: A version cannot be read, and nobody is to be told.
        UsageError: ``versions`` is neither of both.
    """
    if versions not in ("all", "latest"):
        raise UsageError(f"versions is 'all' or 'latest', got {versions!r}.")
    found = {one for pattern in patterns for one in _meant(references, pattern, versions, refuse or _raise)}
    return sorted(found, key=lambda one: (one.name, one.version or Version(0, 0, 0)))


def names(pattern: str, known: Iterable[str]) -> list[str]:
    """Return the names that a pattern speaks of, among those that are known.

    Raises:
        InvalidName: Not written as a name or pattern.
    """
    glob = resolving.split(pattern)[0]
    if resolving.is_pattern(glob):
        return [name for name in known if fnmatchcase(name, glob)]
    return [name for name in known if name == check_name(glob)]


def _meant(references: References, pattern: str, versions: Versions, refuse: Refuse) -> Iterator[Reference]:
    suffix = resolving.split(pattern)[1]
    told: list[Reference] = []

    def tell(one: Reference, error: IntegrityError) -> None:
        told.append(one)
        refuse(one, error)

    matching = names(pattern, references.names())
    if versions == "all" and not suffix:
        found = list(_all(references, matching, tell))
    else:
        found = list(_one_each(references, matching, suffix, tell))
    if not found and not told:
        resolving.select(references, pattern)  # says what there is
    yield from found


def _all(references: References, matching: list[str], refuse: Refuse) -> Iterator[Reference]:
    for name in matching:
        for version in references.versions(name):
            try:
                digest = references.digest(name, version)
            except IntegrityError as error:
                refuse(Reference(name, version), error)
                continue
            yield Reference(name, version, digest=digest)


def _one_each(
    references: References, matching: list[str], suffix: str, refuse: Refuse
) -> Iterator[Reference]:
    for name in matching:
        try:
            yield resolving.resolve(references, Reference.parse(f"{name}{suffix}"))
        except NotFound:
            continue
        except IntegrityError as error:
            refuse(Reference.parse(f"{name}{suffix}"), error)


def _raise(one: Reference, error: IntegrityError) -> None:
    raise error
