"""Faults of a registry's files: the table of codes, and the list of findings."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

import attrs

from compatkit.registry.layout_scan import RegistryEntry

Severity = Literal["error", "warning", "info"]


@attrs.frozen
class FaultCode:
    """Severity, meaning and remedy of a fault code.

    Attributes:
        severity: ``error``: something cannot be read or trusted; ``warning``: it can, but will cause trouble;
            ``info``: harmless.
        meaning: Description of the fault.
        remedy: Default remedy.
    """

    severity: Severity
    meaning: str
    remedy: str


_error, _warning, _info = (partial(FaultCode, severity) for severity in ("error", "warning", "info"))
_COPY = "restore it from another copy of the registry (--from ROOT), or publish the same component again"
_AGAIN = "publish the component again from its source, and `compatkit withdraw` this version"
_LATER = "--from ROOT restores it from another copy of the registry"
_REMOVE = "remove it, or move it out of the registry; " + _LATER
_MARKER = "copy it from another copy of the registry; or remove it and `compatkit init` the folder, with a new identity"
_TWIN = "--repair restores it from its second file, --from ROOT from another copy of the registry"
_FOLLOW = "`compatkit alias NAME ALIAS VERSION` points it at a version that exists"

CODES: Mapping[str, FaultCode] = {
    "marker-missing": _error("compatkit.json is missing", _MARKER),
    "marker-damaged": _error(
        "compatkit.json is damaged", "--repair rewrites it if its identity can be read; else " + _MARKER
    ),
    "folder-missing": _warning("a folder of the layout is missing", "--repair creates it"),
    "symlink": _error("a symbolic link; links are never followed", "replace it by its target; " + _LATER),
    "special-file": _error("a pipe, device or socket", _REMOVE),
    "folder-for-file": _error("a folder where a file belongs", _REMOVE),
    "file-for-folder": _error("a file where a folder belongs", _REMOVE),
    "unreadable": _error("it cannot be read", "check owner, mode and disk, then verify again"),
    "blob-digest": _error("a blob whose bytes do not have the digest in its name", _COPY),
    "blob-missing": _error("a blob that a component needs is missing", _COPY),
    "blob-in-trash": _warning(
        "a blob that a component needs is only in trash/", "--repair or reading it restores it"
    ),
    "blob-size": _error("a blob whose size is not the one in the manifest", _COPY),
    "blob-collected": _info("weights used only by withdrawn versions were collected", "no action needed"),
    "weights-remote": _info("weights that this clone left in its remote", "no action needed"),
    "kin-missing": _warning("a blob of a component that is only an ancestor of others is missing", _COPY),
    "blob-writable": _warning("a writable blob", "--repair, run by its owner, makes it read-only"),
    "manifest-missing": _error("the manifest of a version is missing", _COPY),
    "manifest-format": _error("a manifest that is not strict JSON, or violates the schema", _AGAIN),
    "manifest-schema": _error("a manifest with a newer schema", "upgrade compatkit"),
    "manifest-canonical": _warning("a manifest that is not in canonical JSON", _AGAIN),
    "parent-missing": _error("the manifest of a parent is missing", _COPY),
    "payload-header": _error("weights whose header is invalid", _AGAIN),
    "payload-tensors": _error("weights with other tensors than the manifest lists", _AGAIN),
    "load-refused": _error("a component that no load accepts, though its files are whole", _AGAIN),
    "load-elsewhere": _warning(
        "a component that the libraries and plugins installed here cannot load",
        "install what the message names, and verify again",
    ),
    "version-torn": _error(
        "a truncated version file",
        _LATER + "; if a publish was interrupted, remove the file, and its number is free again",
    ),
    "version-content": _error("a version file without a digest", _LATER),
    "version-exchanged": _error(
        "a version file that states another name or number",
        _LATER + "; or exchange them back, or remove a copy under a free number",
    ),
    "version-target": _error("a version that points at something other than a manifest", _AGAIN),
    "version-step": _error(
        "a version number that is too small a step for the change",
        "`compatkit withdraw` it and publish it again without a version number",
    ),
    "tombstone-damaged": _error(
        "a tombstone that cannot be read",
        _TWIN + "; else remove it and `compatkit withdraw` the version again",
    ),
    "tombstone-missing": _error(
        "the tombstone of a withdrawn version is missing, so the version can be found again",
        _TWIN + "; else `compatkit withdraw` the version again",
    ),
    "tombstone-orphan": _warning(
        "a tombstone without its version",
        "--from ROOT restores the version from another copy of the registry",
    ),
    "alias-damaged": _error(
        "an alias that cannot be read, or contradicts its log",
        "--repair moves it to quarantine, and its log is used; if a move was lost, --from ROOT restores that, or "
        "`compatkit alias NAME ALIAS VERSION` sets the alias again",
    ),
    "alias-dangling": _error("an alias that points at no version", _FOLLOW),
    "alias-withdrawn": _warning("an alias that points at a withdrawn version", _FOLLOW),
    "alias-log-damaged": _error(
        "an entry of an alias log that cannot be read", "--repair moves it to quarantine; " + _LATER
    ),
    "alias-log-gap": _warning("an entry of an alias log is missing, though a later one exists", _LATER),
    "dropped-damaged": _warning(
        "the record of a dropped version number cannot be read", "--repair moves it to quarantine; " + _LATER
    ),
    "dropped-unnamed": _error(
        "a version number was dropped, and its component has no other name left",
        "--repair restores the version",
    ),
    "evidence-damaged": _error(
        "a pointer to a result, with another content than its name",
        "--repair rewrites it, or moves it to quarantine if the result is missing",
    ),
    "result-missing": _error("a measured result is missing", "--repair moves its pointer to quarantine"),
    "result-format": _error(
        "a measured result that is not a JSON object", "--repair moves its pointer to quarantine"
    ),
    "signature-damaged": _error(
        "a signature that cannot be read, or of another manifest",
        "--repair moves it to quarantine; sign again",
    ),
    "signature-orphan": _info("signatures of a manifest that is not in this registry", "no action needed"),
    "policy-damaged": _error(
        "an entry of a policy log that cannot be read",
        _LATER + "; or set the policy again, which takes effect at once",
    ),
    "policy-gap": _warning("an entry of a policy log is missing, though a later one exists", _LATER),
    "settings-refused": _warning(
        "a change of the settings that cannot be read, or that no owner signed; it does not count",
        "find out who wrote it; `compatkit settings show` lists what is in force",
    ),
    "alias-unsigned": _warning(
        "a move of a protected alias that no maintainer signed; it does not count",
        "a maintainer signs it (`compatkit sign NAME --changes`), or moves the alias",
    ),
    "publication-damaged": _info(
        "a record of who published a version that cannot be read", "no action needed; nothing depends on it"
    ),
    "misnamed": _warning("a file or folder with an unknown name; it is never read", "rename or remove it"),
    "stray": _info("a file of another program", "no action needed"),
    "drafts": _info("unfinished files of processes", "compatkit gc removes old ones"),
    "trash": _info("collected blobs, and files of dropped versions", "compatkit gc removes old ones"),
    "quarantine": _info("damaged files that were moved here", "inspect them, then remove them by hand"),
}
"""All fault codes. Codes are stable; severities and texts may change."""


@attrs.frozen
class Fault:
    """A fault in a registry's files.

    Attributes:
        code: One of ``CODES``.
        severity: ``error``, ``warning`` or ``info``.
        path: Relative to the registry's root.
        what: Expected and actual state.
        affected: Affected references, ``name@version``; empty if nothing uses it.
        remedy: Recommended action.
        entry: Expected entry at the path, if known.
    """

    code: str
    severity: Severity
    path: str
    what: str
    affected: tuple[str, ...] = ()
    remedy: str = ""
    entry: RegistryEntry | None = attrs.field(default=None, eq=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "entry")


@attrs.define
class Findings:
    """Collects faults."""

    faults: list[Fault] = attrs.field(factory=list)

    def add(
        self,
        code: str,
        at: str | RegistryEntry,
        what: str,
        affected: Iterable[str] = (),
        remedy: str | None = None,
    ) -> None:
        """Add a fault with the severity of its code.

        Args:
            code: One of ``CODES``.
            at: Path relative to the root, or the expected entry.
            what: Expected and actual state.
            affected: Affected references.
            remedy: Recommended action; None for the remedy of the code.
        """
        kind = CODES[code]
        path, entry = (at, None) if isinstance(at, str) else (at.path, at)
        remedy = kind.remedy if remedy is None else remedy
        self.faults.append(
            Fault(code, kind.severity, path, what, tuple(dict.fromkeys(affected)), remedy, entry)
        )

    def sorted(self) -> tuple[Fault, ...]:
        """Return the faults, errors first, then by path."""
        order = {"error": 0, "warning": 1, "info": 2}
        return tuple(sorted(self.faults, key=lambda fault: (order[fault.severity], fault.path, fault.code)))


def shown(data: bytes) -> str:
    """Return the first bytes of a file for a message; a description if all are zero."""
    if not any(data):
        return f"{len(data):,} zero bytes" if data else "an empty file"
    return repr(data[:40]) + (f"... ({len(data):,} bytes)" if len(data) > 40 else "")


def os_message(error: Exception) -> str:
    """Return the operating system's message for an error."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError):
        return str(error)
    name = errno.errorcode.get(cause.errno or 0, type(cause).__name__)
    return f"{cause.strerror or cause} ({name})"


def kind_fault(path: str | os.PathLike[str], mode: int, expected: str) -> tuple[str, str] | None:
    """Return fault code and description if a mode from ``lstat`` is not of the expected kind, else None.

    Args:
        path: Path of the file or folder.
        mode: Mode of the file or folder.
        expected: ``"file"``, ``"folder"`` or ``"file or folder"``.
    """
    if stat.S_ISLNK(mode):
        return "symlink", f"a symbolic link to {os.readlink(path)!r:.200}; it was not followed"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        return "special-file", f"a {kind}, where a {expected} is expected"
    if stat.S_ISDIR(mode) and expected == "file":
        return "folder-for-file", "a folder, where a file is expected"
    if stat.S_ISREG(mode) and expected == "folder":
        return "file-for-folder", "a file, where a folder is expected"
    return None
