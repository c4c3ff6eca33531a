"""What can be wrong with a registry's files: one table of stable codes, and the faults that were found."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from compatkit.registry.scan import Place

Severity = Literal["error", "warning", "info"]


@attrs.frozen
class Kind:
    """A kind of fault.

    Attributes:
        severity: ``error``: something cannot be read, or not trusted; ``warning``: it can, but somebody will stumble;
            ``info``: of no consequence.
        meaning: What it is.
        remedy: What to do, where the fault itself knows nothing better.
    """

    severity: Severity
    meaning: str
    remedy: str


_COPY = "copy the file from another copy of the registry (--from ROOT), or publish the same component again"
_AGAIN = "publish the component again from its source, and `compatkit withdraw` this version"
_REMOVE = "remove it, or move it out of the registry"
_FOLLOW = "`compatkit alias NAME ALIAS VERSION` points it at a version that exists"

CODES: Mapping[str, Kind] = {
    "marker-missing": Kind("error", "compatkit.json is not there", "--repair writes it anew"),
    "marker-damaged": Kind("error", "compatkit.json is not what it should be", "--repair writes it anew"),
    "folder-missing": Kind("warning", "a folder of the layout is not there", "--repair makes it"),
    "symlink": Kind(
        "error", "a symbolic link, which is never followed", "put the file or folder itself in its place"
    ),
    "special-file": Kind("error", "a pipe, device or socket", _REMOVE),
    "folder-for-file": Kind("error", "a folder where a file belongs", _REMOVE),
    "file-for-folder": Kind("error", "a file where a folder belongs", _REMOVE),
    "unreadable": Kind(
        "error", "the system does not let it be read", "check owner, mode and disk, then verify again"
    ),
    "blob-digest": Kind("error", "other bytes than the name promises", _COPY),
    "blob-missing": Kind("error", "bytes that a component needs are not there", _COPY),
    "blob-in-trash": Kind(
        "warning", "needed, but only trash/ holds it", "reading takes it back, and so does --repair"
    ),
    "blob-size": Kind("error", "another number of bytes than the manifest states", _COPY),
    "blob-place": Kind(
        "error", "needed bytes where nobody looks for them", "--repair moves them to their place"
    ),
    "blob-collected": Kind(
        "info", "weights that only withdrawn versions used are gone", "nothing needs doing"
    ),
    "kin-missing": Kind(
        "warning", "bytes of a component that is there only because another came from it", _COPY
    ),
    "blob-writable": Kind(
        "warning", "a blob that may be overwritten", "--repair takes the right to write away"
    ),
    "blob-linked": Kind(
        "warning",
        "a blob that has another name elsewhere, through which it may change",
        "if the other name is in use, replace it by a copy",
    ),
    "manifest-missing": Kind("error", "a version without its manifest", _COPY),
    "manifest-format": Kind("error", "a manifest that is not strict JSON, or not as the schema asks", _AGAIN),
    "manifest-schema": Kind("error", "a manifest of a schema that is not known here", "upgrade compatkit"),
    "manifest-canonical": Kind("warning", "a manifest that is not written canonically", _AGAIN),
    "parent-missing": Kind("error", "a component that another came from is not there", _COPY),
    "payload-header": Kind("error", "weights whose header is refused", _AGAIN),
    "payload-tensors": Kind("error", "other tensors than the manifest promises", _AGAIN),
    "payload-not-finite": Kind("warning", "weights that are NaN or infinite", _AGAIN),
    "version-torn": Kind("error", "a version file that was cut off", "--repair moves it to quarantine"),
    "version-content": Kind(
        "error", "a version file that holds no digest", "--from ROOT takes it from another copy"
    ),
    "version-exchanged": Kind(
        "error",
        "a version file that states another name or number",
        "--repair takes what was exchanged back to its place, --from ROOT the rest from another copy",
    ),
    "version-target": Kind("error", "a version that points at something else than a manifest", _AGAIN),
    "version-step": Kind(
        "error",
        "a number that is too small a step for what changed",
        "`compatkit withdraw` it and publish it again without a version",
    ),
    "tombstone-damaged": Kind("error", "a tombstone that cannot be read", "--repair writes it anew"),
    "tombstone-missing": Kind(
        "error", "a version that was withdrawn and can be found again", "--repair writes its tombstone"
    ),
    "tombstone-orphan": Kind(
        "warning", "a tombstone of a version that is not there", "--from ROOT restores it"
    ),
    "alias-damaged": Kind(
        "error", "an alias that cannot be read, or contradicts its log", "--repair reads the log"
    ),
    "alias-dangling": Kind("error", "an alias that points at no version", _FOLLOW),
    "alias-withdrawn": Kind("warning", "an alias that points at a withdrawn version", _FOLLOW),
    "alias-behind": Kind(
        "info", "an alias that is older than its log; readers follow the log", "nothing needs doing"
    ),
    "alias-log-damaged": Kind(
        "error", "a move of an alias that cannot be read", "--repair reads its neighbours"
    ),
    "alias-log-gap": Kind("error", "a move of an alias is not there", "--repair reads its neighbours"),
    "evidence-damaged": Kind(
        "error", "a pointer to a result that does not hold its name", "--repair moves it away"
    ),
    "result-missing": Kind("error", "a measured result is not there", "--repair moves the pointer away"),
    "result-format": Kind("error", "a measured result is no JSON object", "--repair moves the pointer away"),
    "signature-damaged": Kind(
        "error",
        "a signature that cannot be read, or is over something else",
        "--repair moves it away; sign again",
    ),
    "signature-orphan": Kind("info", "signatures of a manifest that is not here", "nothing needs doing"),
    "policy-damaged": Kind(
        "error",
        "a change of a policy that cannot be read",
        "--from ROOT takes it from another copy of the registry; or set the policy again, which binds at once",
    ),
    "policy-gap": Kind(
        "warning",
        "a change of a policy is not there, though a later one is",
        "--from ROOT takes it from another copy of the registry",
    ),
    "misnamed": Kind("warning", "a name that means nothing here; it is never read", "rename or remove it"),
    "case-twins": Kind(
        "warning", "names that some file systems take for one", "rename or remove the odd one"
    ),
    "narrow-rights": Kind("warning", "less rights than the shared root gives", "chmod, as its owner"),
    "stray": Kind("info", "a file of another program", "nothing needs doing"),
    "drafts": Kind("info", "unfinished files of processes", "compatkit gc removes old ones"),
    "trash": Kind("info", "blobs that gc took out", "compatkit gc removes old ones"),
    "quarantine": Kind(
        "info", "damaged files that were moved away", "look at them, then remove them by hand"
    ),
}
"""Every code that a fault can have. Codes are never reworded; severity and words may be."""


@attrs.frozen
class Fault:
    """One thing that is wrong.

    Attributes:
        code: One of ``CODES``.
        severity: ``error``, ``warning`` or ``info``.
        path: Relative to the registry's root.
        what: What was expected and what came.
        whose: References that are affected, ``name@version``; empty where nothing uses it.
        remedy: What to do.
        place: What is at the path, or should be, if that is known.
    """

    code: str
    severity: Severity
    path: str
    what: str
    whose: tuple[str, ...] = ()
    remedy: str = ""
    place: Place | None = attrs.field(default=None, eq=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "place")


@attrs.define
class Findings:
    """Faults as they are found."""

    faults: list[Fault] = attrs.field(factory=list)

    def add(
        self, code: str, at: str | Place, what: str, whose: Iterable[str] = (), remedy: str | None = None
    ) -> None:
        """Keep a fault; severity and, if none is given, the remedy are those of its code."""
        kind = CODES[code]
        path, place = (at, None) if isinstance(at, str) else (at.path, at)
        told = kind.remedy if remedy is None else remedy
        self.faults.append(Fault(code, kind.severity, path, what, tuple(dict.fromkeys(whose)), told, place))

    def sorted(self) -> tuple[Fault, ...]:
        """Return the faults, errors first, then by path."""
        order = {"error": 0, "warning": 1, "info": 2}
        return tuple(sorted(self.faults, key=lambda one: (order[one.severity], one.path, one.code)))


def shown(data: bytes, most: int = 40) -> str:
    """Return what a file holds, for a message: its first bytes, or in words where these say nothing."""
    if not any(data):
        return f"{len(data):,} zero bytes" if data else "an empty file"
    return repr(data[:most]) + (f"... ({len(data):,} bytes)" if len(data) > most else "")


def answer(error: Exception) -> str:
    """Return in a few words what the system answered."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError):
        return str(error)
    name = errno.errorcode.get(cause.errno or 0, type(cause).__name__)
    return f"{cause.strerror or cause} ({name})"
