"""Numbers of versions against what changed between their manifests: one that is too small a step misleads ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compatkit.contracts.manifest import Manifest, from_bytes
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.names import Version
from compatkit.registry.refs import LIMIT
from compatkit.registry.steps import untrue
from compatkit.registry.verify.pointers import LINE, Published
from compatkit.registry.verify.selection import Withdrawn
from compatkit.registry.verify.survey import Survey


def check_numbers(survey: Survey, versions: Sequence[Published], read: Callable[[str], bytes | None]) -> None:
    """Report versions whose number is too small a step from the one below them; withdrawn ones promise nothing.

    Args:
        survey: What is there.
        versions: Those that are looked at.
        read: Returns the bytes of a document; None where it is missing or damaged, which is told elsewhere.
    """
    gone, digests = Withdrawn(survey), {(one.name, one.version): one.digest for one in versions}
    last: tuple[str, Manifest | None] = "", None
    for one in versions:
        below = _below(survey, one, gone) if one not in gone else None
        if below is None:
            continue
        digest = digests.get((one.name, below)) or _pointed(survey, one.name, below)
        before = last[1] if last[0] == digest else _manifest(digest, read)
        after = _manifest(one.digest, read)
        last = one.digest, after
        why = untrue((below, before), (one.version, after)) if before and after else ""
        if why:
            survey.findings.add("version-step", f"refs/{one.name}/@versions/{one.version}", why, (str(one),))


def _below(survey: Survey, one: Published, gone: Withdrawn) -> Version | None:
    """Return the last version below one that was not withdrawn."""
    known = survey.versions.get(one.name, ())
    below = (each for each in known if each < one.version and Published(one.name, each, "") not in gone)
    return max(below, default=None)


def _pointed(survey: Survey, name: str, version: Version) -> str:
    """Return the digest of a version that is not itself looked at; empty where its file does not tell."""
    try:
        found = durable.read(survey.root / f"refs/{name}/@versions/{version}", survey.root, limit=LIMIT)
    except (EnvironmentFailure, IntegrityError):
        return ""
    return found[0].decode().strip() if found is not None and LINE.fullmatch(found[0]) else ""


def _manifest(digest: str, read: Callable[[str], bytes | None]) -> Manifest | None:
    data = read(digest) if digest else None
    try:
        return None if data is None else from_bytes(data)
    except FormatError:
        return None
