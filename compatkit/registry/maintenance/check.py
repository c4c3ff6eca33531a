"""Verification: find all faults in a registry's files without changing anything.

Damage does not stop it, and contents are checked before they are trusted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.foundation.addresses import local
from compatkit.foundation.display import Shown
from compatkit.registry import Progress
from compatkit.registry.layout import LAYOUT, MARKER, Layout, LayoutTooNew, inspect
from compatkit.registry.maintenance.blobs import BlobChecks
from compatkit.registry.maintenance.faults import CODES, Fault, Findings, answer
from compatkit.registry.maintenance.references import (
    check_aliases,
    check_numbers,
    check_policies,
    check_results,
    check_signatures,
    check_tombstones,
    read_versions,
)
from compatkit.registry.maintenance.survey import Survey
from compatkit.registry.refs import WITHDRAWALS
from compatkit.registry.scan import ASIDE

if TYPE_CHECKING:
    from compatkit.registry.store import Store

__all__ = ["CODES", "Fault", "Soundness", "examine", "open_damaged"]

SCHEMA = 1
_COUNTED = ("versions", "manifests", "results", "blobs", "bytes")
_STAND_IN = Layout(LAYOUT, LAYOUT, LAYOUT, "sha256", "unknown")
"""Layout assumed if ``compatkit.json`` cannot be read."""


@attrs.frozen(repr=False)
class Soundness(Shown):
    """Result of a verification.

    Attributes:
        root: Folder of the registry.
        faults: Errors, then warnings, then infos; each by path.
        deep: Whether all contents were compared with their digests.
        versions: Number of versions checked.
        manifests: Number of manifests read, including parents.
        results: Number of measured results.
        blobs: Number of blobs checked.
        bytes: Bytes of blobs read.
    """

    root: Path
    faults: tuple[Fault, ...]
    deep: bool = True
    versions: int = 0
    manifests: int = 0
    results: int = 0
    blobs: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        read = ", ".join(f"{getattr(self, name):,} {name}" for name in _COUNTED)
        lines = [f"{'sound' if self.sound else 'not sound'}; read {read}", f"registry {self.root}"]
        return "\n".join(
            [
                *lines,
                *(f"{fault.severity:<7}  {fault.code}  {fault.path}: {fault.what}" for fault in self.faults),
            ]
        )

    @property
    def sound(self) -> bool:
        """Whether there are no errors; warnings and infos are ignored."""
        return not any(fault.severity == "error" for fault in self.faults)

    def count(self, severity: str) -> int:
        """Return the number of faults of a severity."""
        return sum(fault.severity == severity for fault in self.faults)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "schema": SCHEMA,
            "kind": "soundness",
            "root": str(self.root),
            "deep": self.deep,
            "sound": self.sound,
            "read": {name: getattr(self, name) for name in _COUNTED},
            "counts": {f"{severity}s": self.count(severity) for severity in ("error", "warning", "info")},
            "faults": [fault.to_json() for fault in self.faults],
        }


def examine(store: Store, *, deep: bool = True, progress: Progress | None = None) -> Soundness:
    """Verify a registry's files; changes nothing.

    Other processes may publish and collect garbage meanwhile; what they add or move is not a fault.

    Args:
        store: The registry.
        deep: Compare all contents with their digests. If False, only headers of weights are read: this finds missing,
            truncated and misplaced files; manifests and results are compared anyway.
        progress: Called with bytes done, bytes in all, and what is being read.
    """
    survey = Survey(store.root)
    _check_marker(survey.findings, store.root)
    survey.look(*ASIDE)
    # references before blobs, as a publish writes blobs first
    survey.look("refs", WITHDRAWALS, "policies", "evidence", "signatures", "blobs", "keys", "locks", "")
    survey.report_folders()
    check_policies(survey)
    total = sum(state.st_size for state in survey.blobs.values())
    blobs = BlobChecks(survey, deep, total, progress)
    uses = blobs.uses
    versions = read_versions(survey)
    withdrawn = {version for version in versions if version.version in survey.names[version.name].tombstones}
    uses.follow_versions(versions, withdrawn)
    check_numbers(survey, versions, blobs.manifest)
    check_tombstones(survey)
    check_aliases(survey)
    results = check_results(survey, uses.label)
    uses.follow_results(results)
    check_signatures(survey, uses.users)
    blobs.check_all({*uses.of, *survey.blobs, *survey.odd})
    _report_leftovers(survey)
    report = Soundness(
        store.root,
        survey.findings.sorted(),
        deep,
        len(versions),
        uses.manifests,
        len(results),
        len(survey.blobs),
        blobs.amount,
    )
    if not report.sound and store.index.path.exists():
        with suppress(IntegrityError, EnvironmentFailure):
            store.index.rebuild()  # it may contain damaged data
    return report


def open_damaged(root: str | os.PathLike[str]) -> Store:
    """Open a registry for verification even if its ``compatkit.json`` is damaged or missing.

    Raises:
        LayoutError: The folder holds neither that file nor references and blobs, or its layout is newer.
    """
    from compatkit.registry.store import Store

    path = Path(local(root, "a registry")).absolute()
    try:
        return Store.open(path)
    except LayoutTooNew:
        raise
    except (IntegrityError, EnvironmentFailure):
        if not os.path.lexists(path / MARKER) and not all(
            (path / folder).is_dir() for folder in ("blobs", "refs")
        ):
            raise
        return Store(path, _STAND_IN)


def _check_marker(findings: Findings, root: Path) -> None:
    if not os.path.lexists(root / MARKER):
        findings.add("marker-missing", MARKER, "without it the folder is no registry")
        return
    try:
        inspect(root)
    except CompatkitError as error:
        code = "unreadable" if isinstance(error.__cause__, OSError) else "marker-damaged"
        findings.add(code, MARKER, answer(error))


def _report_leftovers(survey: Survey) -> None:
    for folder, code in (("tmp", "drafts"), ("trash", "trash"), ("quarantine", "quarantine")):
        if states := survey.aside[folder].values():
            files = "1 file" if len(states) == 1 else f"{len(states):,} files"
            what = f"{files} of {sum(state.st_size for state in states):,} bytes"
            survey.findings.add(code, folder, what)
