"""Verification: find all faults in a registry's files without changing anything.

It continues after damage, and checks contents before it trusts them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    IntegrityError,
    InvalidName,
    LayoutError,
    NotFound,
)
from compatkit.foundation.addresses import local
from compatkit.foundation.display import Shown
from compatkit.registry.layout import LAYOUT, MARKER, Layout, LayoutTooNew, inspect
from compatkit.registry.layout_scan import ASIDE
from compatkit.registry.local_cache import Verification
from compatkit.registry.log import now
from compatkit.registry.maintenance.blobs import BlobChecks
from compatkit.registry.maintenance.faults import CODES, Fault, Findings, os_message
from compatkit.registry.maintenance.loads import LoadCheck, check_loads
from compatkit.registry.maintenance.references import (
    StepChecks,
    check_aliases,
    check_drops,
    check_policies,
    check_publications,
    check_results,
    check_settings,
    check_signatures,
    check_tombstones,
    read_versions,
)
from compatkit.registry.maintenance.survey import Survey
from compatkit.registry.remotes.sources import described
from compatkit.registry.settings import FOLDER as SETTINGS
from compatkit.registry.withdrawals import WITHDRAWALS

if TYPE_CHECKING:
    from compatkit.registry import Progress
    from compatkit.registry.names import Version
    from compatkit.registry.store import Store

__all__ = ["CODES", "Fault", "VerificationReport", "examine", "open_damaged"]

SCHEMA = 1
_COUNTED = ("versions", "manifests", "results", "blobs", "bytes")
_UNKNOWN_LAYOUT = Layout(LAYOUT, LAYOUT, LAYOUT, "sha256", "unknown")
"""Layout assumed if ``compatkit.json`` cannot be read."""


@attrs.frozen(repr=False)
class VerificationReport(Shown):
    """Result of a verification.

    Attributes:
        root: Folder of the registry.
        faults: Errors, then warnings, then infos; each group sorted by path.
        patterns: Patterns that were checked; empty for everything.
        deep: Whether all contents were compared with their digests.
        versions: Number of versions checked.
        manifests: Number of manifests read, including parents.
        results: Number of measured results.
        blobs: Number of blobs checked.
        bytes: Bytes of blobs read.
        address: Address, if it is a remote; empty for a folder.
    """

    root: Path
    faults: tuple[Fault, ...]
    patterns: tuple[str, ...] = ()
    deep: bool = True
    versions: int = 0
    manifests: int = 0
    results: int = 0
    blobs: int = 0
    bytes: int = 0
    address: str = ""

    @property
    def where(self) -> str:
        """Folder or address of the registry, for messages."""
        return self.address or str(self.root)

    def __str__(self) -> str:
        read = ", ".join(f"{getattr(self, name):,} {name}" for name in _COUNTED)
        lines = [f"{'sound' if self.sound else 'not sound'}; read {read}", f"registry {self.where}"]
        lines += [f"{fault.severity:<7}  {fault.code}  {fault.path}: {fault.what}" for fault in self.faults]
        return "\n".join(lines)

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
            "root": self.where,
            "patterns": list(self.patterns),
            "deep": self.deep,
            "sound": self.sound,
            "read": {name: getattr(self, name) for name in _COUNTED},
            "counts": {f"{severity}s": self.count(severity) for severity in ("error", "warning", "info")},
            "faults": [fault.to_json() for fault in self.faults],
        }


def examine(
    store: Store,
    *,
    patterns: Iterable[str] | None = None,
    deep: bool = True,
    loads: LoadCheck | None = None,
    progress: Progress | None = None,
) -> VerificationReport:
    """Verify a registry's files; change nothing. The cache remembers when all contents of all files were compared.

    Other processes may publish and collect garbage at the same time; files that they add or move are not faults.

    Args:
        store: Registry to verify.
        patterns: Names or ``NAME@VERSION``, each part a glob: only these components and everything they refer to are
            checked. None or empty checks every file.
        deep: Whether to compare all contents with their digests. If False, only headers of weights are read, which
            finds missing, truncated and misplaced files; manifests and results are always compared.
        loads: Check of versions whose files are whole, see ``components.loadable``; None checks files only.
        progress: Function called with bytes done, total bytes, and a description.

    Raises:
        NotFound: A pattern matches nothing.
        InvalidName: A pattern names an alias or a range.
    """
    with _no_collections():
        scope, survey = _Scope(tuple(patterns or ())), Survey(store.root)
        _check_marker(survey.findings, store.root)
        survey.scan(*ASIDE)
        # references before blobs, as a publish writes blobs first
        survey.scan("refs", WITHDRAWALS, wanted=scope.folder)
        scope.check(survey)
        if not scope.patterns:
            survey.scan("policies", SETTINGS, "evidence", "signatures", "blobs", "keys", "locks", "")
            survey.report_folders()
            check_policies(survey)
            check_settings(survey)
            check_publications(survey)
        total = sum(state.st_size for state in survey.blobs.values())
        blobs = BlobChecks(survey, deep, total, progress, described(store.root, store.id))
        users = blobs.users
        users.with_functions = bool(survey.results or scope.patterns)
        versions = read_versions(survey, scope.version)
        out_of_use = {name: files.withdrawn for name, files in survey.names.items()}
        withdrawn = {
            version
            for version in versions
            if (numbers := out_of_use[version.name]) and version.version in numbers
        }
        users.follow_versions(
            versions, withdrawn, after_each=StepChecks(survey, versions, blobs.manifest).check
        )
        check_tombstones(survey, scope.version)
        check_drops(survey, scope.version, versions, complete=not scope.patterns)
        check_aliases(survey, scope.all_versions)
        if scope.patterns:
            known, signed = users.functions.keys(), {version.digest[7:] for version in versions}
            survey.scan(
                "evidence", wanted=lambda path: path.count("/") < 2 or not known.isdisjoint(path.split("/"))
            )
            survey.scan("signatures", wanted=lambda path: path.rpartition("/")[2] in signed)
        results = check_results(survey, users.label)
        users.follow_results(results)
        check_signatures(survey, users.of)
        blobs.check_all({*users.uses, *survey.blobs, *survey.irregular})
    if loads is not None:
        check_loads(store, blobs, versions, withdrawn, loads)
    _report_set_aside(survey)
    report = VerificationReport(
        store.root,
        survey.findings.sorted(),
        scope.patterns,
        deep,
        len(versions),
        users.manifests,
        len(results),
        len(survey.blobs),
        blobs.bytes_read,
    )
    if not report.sound and store.index.path.exists():
        with suppress(IntegrityError, EnvironmentFailure):
            store.index.rebuild()  # it may contain damaged data
    if deep and not scope.patterns:
        store.local_cache.remember_verification(
            Verification(now(), report.count("error"), report.count("warning"))
        )
    return report


@contextmanager
def _no_collections() -> Iterator[None]:
    """Let Python look for no reference cycles meanwhile: it would look through all that was found, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@attrs.frozen
class _Scope:
    """Scope of the check: everything, or names and versions that match patterns."""

    patterns: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        for pattern in self.patterns:
            if ":" in pattern or "@^" in pattern:
                raise InvalidName(
                    f"{pattern!r:.100}: expected a name or NAME@VERSION, optionally with *, ? and [...], not an alias, "
                    "digest or range.",
                    subject=pattern,
                )

    def folder(self, path: str) -> bool:
        """Return whether to look into a folder in ``refs``, as at least one version of its name is checked."""
        name, folder, _ = path.removeprefix("refs/").partition("/@")
        names = [pattern.partition("@")[0] for pattern in self.patterns]
        return not (names and folder) or any(fnmatchcase(name, pattern) for pattern in names)

    def all_versions(self, name: str) -> bool:
        """Return whether all versions of a name are checked, and therefore its aliases."""
        return not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def version(self, name: str, version: Version) -> bool:
        """Return whether a version is checked."""
        return self.all_versions(name) or self.all_versions(f"{name}@{version}")

    def check(self, survey: Survey) -> None:
        """Raise for a pattern that matches nothing."""
        if not self.patterns:
            return
        known = [*survey.names]
        known += [f"{name}@{version}" for name, files in survey.names.items() for version in files.versions]
        for pattern in self.patterns:
            if not any(fnmatchcase(label, pattern) for label in known):
                raise NotFound(
                    f"{pattern!r:.100} matches no component of {survey.root}; see `compatkit ls`.",
                    subject=pattern,
                )


def open_damaged(root: str | os.PathLike[str]) -> Store:
    """Open a registry for verification even if its ``compatkit.json`` is damaged or missing.

    Raises:
        LayoutError: The folder has neither that file nor references and blobs, or its layout is newer.
    """
    from compatkit.registry.store import Store

    path = Path(local(root, "a registry")).absolute()
    try:
        return Store.open(path)
    except LayoutTooNew:
        raise
    except (IntegrityError, LayoutError, EnvironmentFailure):
        if not os.path.lexists(path / MARKER) and not all(
            (path / folder).is_dir() for folder in ("blobs", "refs")
        ):
            raise
        return Store(path, _UNKNOWN_LAYOUT)


def _check_marker(findings: Findings, root: Path) -> None:
    if not os.path.lexists(root / MARKER):
        findings.add("marker-missing", MARKER, "without it, the folder is not a registry")
        return
    try:
        inspect(root)
    except CompatkitError as error:
        code = "unreadable" if isinstance(error.__cause__, OSError) else "marker-damaged"
        findings.add(code, MARKER, os_message(error))


def _report_set_aside(survey: Survey) -> None:
    for folder, code in (("tmp", "drafts"), ("trash", "trash"), ("quarantine", "quarantine")):
        if states := survey.aside[folder].values():
            files = "1 file" if len(states) == 1 else f"{len(states):,} files"
            what = f"{files} of {sum(state.st_size for state in states):,} bytes"
            survey.findings.add(code, folder, what)
