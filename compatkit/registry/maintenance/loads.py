"""Check that a load would accept the versions whose files are sound. The check is passed in: it builds networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from compatkit.contracts.manifest import Manifest
from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.registry.layout_scan import Blob
from compatkit.registry.maintenance.blobs import BlobChecks, blob
from compatkit.registry.maintenance.contents import header_or_fault
from compatkit.registry.names import Reference
from compatkit.registry.weights.header import Header

if TYPE_CHECKING:
    from compatkit.registry.maintenance.references import Published
    from compatkit.registry.store import Store


class LoadRefusal(NamedTuple):
    """Reason for which a load refuses a component.

    Attributes:
        what: Message of the error.
        elsewhere: Whether a machine with other libraries or plugins may accept it.
    """

    what: str
    elsewhere: bool


ReadHeader = Callable[[], Header | None]
"""Function that reads the header of a component's weights; None if it stores none."""
LoadCheck = Callable[["Store", Reference, Manifest, ReadHeader], LoadRefusal | None]
"""Function of a store, a resolved reference, its manifest and ``ReadHeader``."""


def check_loads(
    store: Store,
    blobs: BlobChecks,
    versions: Iterable[Published],
    withdrawn: Container[Published],
    check: LoadCheck,
) -> None:
    """Report versions that a load refuses, among those that are not withdrawn and have no other error.

    Args:
        store: Registry of the versions.
        blobs: Finished check of the blobs; faults are added to its findings.
        versions: Versions to check.
        withdrawn: Withdrawn ones among them.
        check: Check of one component.
    """
    findings = blobs.survey.findings
    damaged = {user for fault in findings.faults if fault.severity == "error" for user in fault.affected}
    same: dict[str, list[Published]] = defaultdict(list)
    for version in versions:
        if version not in withdrawn and version.label not in damaged:
            same[version.digest].append(version)
    for count, (digest, same_versions) in enumerate(same.items()):
        if blobs.progress is not None:
            item = f"network {count + 1:,} of {len(same):,}, {same_versions[0].label}"
            blobs.progress(blobs.bytes_read, blobs.bytes_read, item)  # the unit is bytes
        manifest = blobs.manifest(digest)
        if (
            manifest is None or manifest.payload.file.blob in blobs.left
        ):  # collected or replaced in the meantime
            continue
        reference = Reference(same_versions[0].name, same_versions[0].version, digest=digest)
        try:
            refusal = check(store, reference, manifest, partial(_header, blobs, manifest))
        except (EnvironmentFailure, FileNotFoundError):  # removed in the meantime, or reported as unreadable
            continue
        if refusal is not None:
            code = "load-elsewhere" if refusal.elsewhere else "load-refused"
            labels = [version.label for version in same_versions]
            findings.add(code, Blob(blob(digest).path, digest), refusal.what, labels)


def _header(blobs: BlobChecks, manifest: Manifest) -> Header | None:
    """Return the header of the weights; None if there are none."""
    path = blobs.survey.root / blob(manifest.payload.file.blob).path
    if manifest.payload.file.bytes == 0 or not path.exists():
        return None
    header = header_or_fault(path)
    if isinstance(header, str):
        raise IntegrityError(f"{path}: {header}", subject=path)
    return header
