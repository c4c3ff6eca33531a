"""Resolve references and patterns to versions; errors list the versions, aliases or similar names that exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from compatkit.errors import NotFound, UsageError, near
from compatkit.registry.aliases import Aliases
from compatkit.registry.names import Reference, Version, check_name

if TYPE_CHECKING:
    from compatkit.registry.refs import References


def names(references: References, pattern: str | None) -> list[str]:
    """Return all names, or those that match a glob, sorted.

    Args:
        references: Names and versions of the registry.
        pattern: Glob over names; None for all names.
    """
    known = references.names()
    return known if pattern is None else [name for name in known if fnmatchcase(name, pattern)]


def live(references: References, name: str) -> list[Version]:
    """Return the versions of a name in ascending order, without withdrawn ones.

    Args:
        references: Names and versions of the registry.
        name: Name of the component.

    Raises:
        NotFound: There is no such name.
    """
    versions = references.versions(name)
    if not versions:
        raise _no_name(references, name)
    withdrawn = references.withdrawn(name)
    return [version for version in versions if version not in withdrawn]


def is_pattern(text: str) -> bool:
    """Return whether ``text`` is a glob, so that ``select`` may return several components."""
    return "*" in text or "?" in text or ("[" in text and "]" in text.partition("[")[2])


def split(pattern: str) -> tuple[str, str]:
    """Split a pattern into its name or glob and its suffix: ``""``, ``"@^1"``, ``":prod"``."""
    positions = (pattern.find("@"), pattern.find(":"))
    mark = min((position for position in positions if position >= 0), default=len(pattern))
    return pattern[:mark], pattern[mark:]


def matching_names(pattern: str, known: Iterable[str]) -> list[str]:
    """Return the known names that a pattern matches.

    Args:
        pattern: Reference whose name may be a glob; version and alias are ignored.
        known: Names of components.

    Raises:
        InvalidName: Not a valid name or pattern.
    """
    glob = split(pattern)[0]
    if is_pattern(glob):
        return [name for name in known if fnmatchcase(name, glob)]
    return [name for name in known if name == check_name(glob)]


def resolve(references: References, reference: Reference) -> Reference:
    """Return a reference with its version and digest filled in.

    Args:
        references: Names and versions of the registry.
        reference: Reference with a version, range, alias, digest, or only a name.

    Raises:
        NotFound: There is no such name, version, alias or digest, or the version was withdrawn.
    """
    if reference.version is not None:
        return (
            reference
            if reference.digest is not None
            else _pinned(references, reference.name, reference.version)
        )
    if reference.digest is not None:
        return _by_digest(references, reference.name, reference.digest)
    if reference.alias is not None:
        return _by_alias(references, reference.name, reference.alias)
    latest = references.latest(reference.name, reference.range)
    if latest is None:
        raise NotFound(
            f"{reference} matches no version: {_existing(references, reference.name)}", subject=str(reference)
        )
    return _pinned(references, reference.name, latest)


def select(references: References, pattern: str) -> list[Reference]:
    """Return the references that a pattern matches, resolved and sorted by name.

    Args:
        references: Names and versions of the registry.
        pattern: Reference whose name may be a glob.

    Raises:
        NotFound: Nothing matches.
        InvalidName: ``pattern`` is not a reference or pattern.
    """
    glob, suffix = split(pattern)
    if not is_pattern(glob):
        return [resolve(references, Reference.parse(pattern))]
    reference = Reference.parse(f"any{suffix}")  # a suffix that is not valid is an error, not an empty result
    known = names(references, glob)
    matches: list[Reference] = []
    for name in known:
        try:
            matches.append(
                resolve(
                    references,
                    Reference(name, reference.version, reference.range, reference.alias, reference.digest),
                )
            )
        except NotFound:
            continue
    if not matches:
        reason = (
            f"none of the {len(known)} names has {suffix or 'a version'}"
            if known
            else _near(references, glob)
        )
        raise NotFound(f"{pattern!r} matches no component: {reason}.", subject=pattern)
    return matches


def wrong_kind(reference: Reference, kind: str, expected: Sequence[str], pattern: str) -> UsageError:
    """Return the error for a component of an unexpected kind.

    Args:
        reference: Resolved reference of the component.
        kind: Kind of the component.
        expected: Allowed kinds.
        pattern: Reference or pattern that selected the component; the ``subject`` of the error.
    """
    hint = f"; narrow the pattern {pattern!r}" if is_pattern(pattern) else ""
    return UsageError(
        f"{reference} is of kind {kind}; expected {' or '.join(expected)}{hint}.", subject=pattern
    )


def _pinned(references: References, name: str, version: Version) -> Reference:
    digest = references.digest(name, version)
    if digest is None:
        from compatkit.registry.drop_records import drop_log, last_drop

        dropped = last_drop(drop_log(references, name, version))
        if dropped is not None:
            raise NotFound(
                f"{name}@{version} was dropped on {dropped.time}: {dropped.reason}. It was kept as {dropped.kept}. To "
                f"read it all the same, pin {dropped.kept.partition('@')[0]}@{dropped.digest}.",
                subject=f"{name}@{version}",
            )
        raise NotFound(f"{name} has no version {version}: {_existing(references, name)}", subject=name)
    if tombstone := references.tombstone(name, version):
        versions = _existing(references, name)
        raise NotFound(
            f"{name}@{version} was withdrawn on {tombstone.time}: {tombstone.reason}. "
            f"{versions[0].upper()}{versions[1:]} To read it all the same, pin {name}@{digest}.",
            subject=f"{name}@{version}",
        )
    return Reference(name, version, digest=digest)


def _by_digest(references: References, name: str, digest: str) -> Reference:
    for version in reversed(references.versions(name)):
        if references.digest(name, version) == digest:
            return Reference(name, version, digest=digest)
    raise NotFound(f"no version of {name} is {digest}: {_existing(references, name)}", subject=name)


def _by_alias(references: References, name: str, alias: str) -> Reference:
    aliases = Aliases(references.folder(name), references.root)
    version = aliases.get(alias)
    if version is None:
        if not references.versions(name):
            raise _no_name(references, name)
        known = ", ".join(f"{key} ({value})" for key, value in aliases.all().items()) or "none"
        raise NotFound(f"{name} has no alias {alias!r}; its aliases are: {known}.", subject=f"{name}:{alias}")
    return _pinned(references, name, Version.parse(version))


def _existing(references: References, name: str) -> str:
    versions = live(references, name)
    if not versions:
        return f"all its versions were withdrawn; see `compatkit log {name}`."
    shown = [str(version) for version in versions[-10:]]
    return f"its versions are {'..., ' if len(versions) > 10 else ''}{', '.join(shown)}."


def _no_name(references: References, name: str) -> NotFound:
    return NotFound(f"no component is named {name!r}: {_near(references, name)}.", subject=name)


def _near(references: References, name: str) -> str:
    known = references.names()
    if not known:
        return f"the registry {references.root} is empty"
    close = near(name, known, 3, 0.5)
    return f"perhaps {' or '.join(close)}" if close else f"there are {len(known)} names, see `compatkit ls`"
