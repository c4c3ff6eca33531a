"""Read components from packages of a plugin, and write them as packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.manifest import from_bytes
from compatkit.errors import CompatkitError, FormatError, IntegrityError, InvalidName, LayoutError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.copy.blobs import BlobGraph
from compatkit.registry.copy.endpoints import OpenBlob, Origin
from compatkit.registry.copy.local import LocalRegistry
from compatkit.registry.copy.report import CopiedBlob, Refusal, TransferReport, on_refusal, race_note
from compatkit.registry.copy.settings import TransferSettings, select_versions
from compatkit.registry.copy.small_files import SignatureFiles
from compatkit.registry.log import LIMIT
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import References, version_line
from compatkit.registry.remotes.files import convert_errors
from compatkit.registry.remotes.located import Packages
from compatkit.registry.remotes.mirror import write_scratch
from compatkit.registry.remotes.packages import Package, PackageFile, Role, WrittenPackage
from compatkit.registry.remotes.read_ahead import read_ahead
from compatkit.registry.remotes.remote import scratch_folder
from compatkit.registry.signing.signatures import FOLDER as SIGNATURES

if TYPE_CHECKING:
    from compatkit.registry.store import Store

ROLES: Mapping[str, Role] = {"component": "manifest", "payload": "weights"}


@attrs.define(eq=False)
class PackageOrigin(Origin):
    """Packages as the origin of a transfer.

    Attributes:
        packages: Packages to read.
        patterns: Names, globs or references of components; others may be left out.
    """

    packages: Packages
    patterns: Sequence[str] = ("*",)
    _folder: TemporaryDirectory[str] = attrs.field(init=False)
    _components: dict[str, str] = attrs.field(init=False, factory=dict)
    _signatures: dict[str, str] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Mirror the names and versions of packages; unreadable ones are refused.

        Raises:
            LayoutError: There are no packages at the address.
        """
        self._folder = scratch_folder()
        try:
            self.address, self.scratch = self.packages.url, self._folder.name
            self.references = References(Path(self.scratch))
            self.advice = self.packages.store.advice
            for package in self.packages.read(self.patterns, self.refused):
                self._add(package)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the scratch folder, and close the packages."""
        self._folder.cleanup()
        self.packages.store.close()

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""
        with convert_errors(self.address, "look at", digest):
            return self.packages.store.size(digest)

    @contextmanager
    def open(self, digest: str, owner: str) -> Iterator[OpenBlob]:
        """Open a blob."""
        size = self.size(digest)
        if size is None:
            raise self.missing(digest, owner)

        def read_range(start: int, count: int) -> bytes:
            with convert_errors(self.address, "read", digest):
                data = self.packages.store.read(digest, start, count)
            if data is None:
                raise self.missing(digest, owner)
            return data[:count]

        with read_ahead(read_range, size) as read:
            yield OpenBlob(f"{self.address}/{digest}", size, read)

    def list_small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all signatures in folders; packages have no other small files."""
        return sorted(path for path in self._signatures if path.rpartition("/")[0] in folders)

    def read_small_file(self, path: str) -> bytes | None:
        """Return a signature."""
        digest = self._signatures.get(path)
        if digest is None:
            return None
        with self.open(digest, path) as incoming:
            return incoming.read(LIMIT + 1)

    def _add(self, package: Package) -> None:
        """Mirror a package, or refuse it."""
        reference = f"{package.name}@{package.version}"
        with on_refusal(lambda error: self.refused.append(Refusal(reference, error))):
            self._check(package, reference)
            path = f"refs/{package.name}/@versions/{package.version}"
            write_scratch(self.scratch, path, version_line(reference, package.files[0].digest))
            for file in package.files:
                if file.role == "signature" and file.signs and "/" not in file.title:
                    folder = f"{SIGNATURES}/{file.signs.removeprefix('sha256:')}"
                    self._signatures[f"{folder}/{file.title}"] = file.digest

    def _check(self, package: Package, reference: str) -> None:
        """Check name, version, sizes and uniqueness of a package.

        Raises:
            FormatError: Name or version is invalid, there is no manifest, or two packages differ.
            IntegrityError: A file is missing or has another size.
        """
        try:
            check_name(package.name)
            if str(Version.parse(package.version)) != package.version:
                raise InvalidName(f"{package.version!r:.80} is not a version.")
        except InvalidName as error:
            raise FormatError(f"{self.address}: {error}") from None
        if not package.files or package.files[0].role != "manifest":
            raise FormatError(
                f"{self.address}: expected a manifest as first file of {reference}.", subject=reference
            )
        for file in package.files:
            if (size := self.size(file.digest)) != file.size:
                raise IntegrityError(
                    f"{reference}: expected {file.size} bytes of {file.digest}, got {size}. {self.advice}",
                    subject=file.digest,
                )
        digest = package.files[0].digest
        known = self._components.setdefault(reference, digest)
        if known != digest:
            raise FormatError(
                f"{self.address}: {reference} is {known} in one package and {digest} in another.",
                subject=reference,
            )


def write_packages(
    store: Store, packages: Packages, patterns: Sequence[str], settings: TransferSettings
) -> TransferReport:
    """Write components as packages, each with its parents.

    Withdrawn versions, results, aliases and policies are left out.

    Args:
        store: Registry to copy from.
        packages: Packages to write to; may be empty or missing.
        patterns: Names, globs, or references for one version of each.
        settings: Settings of the transfer; ``versions``, ``jobs``, ``progress`` and ``dry_run`` are used.

    Returns:
        Report of what was written and refused.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The address contains something else.
        EnvironmentFailure: Disk full, no write permission.
    """
    selected = select_versions(store.references, patterns, settings.versions)
    wanted = [
        reference
        for reference in selected
        if reference.version not in store.references.withdrawn(reference.name)
    ]
    graph = BlobGraph(LocalRegistry(store))
    graph.add_components(wanted)
    report = TransferReport(planned=settings.dry_run)
    if settings.dry_run:
        existing: set[tuple[str, str]] = set()
        with suppress(LayoutError):  # there are no packages yet
            names = sorted({reference.name for reference in wanted})
            existing.update((package.name, package.version) for package in packages.read(names, []))
        for reference in wanted:
            exists = (reference.name, str(reference.version)) in existing
            (report.existing if exists else report.created).append(reference)
        return report
    with convert_errors(packages.url, "write", ""):
        packages.store.begin()

    def write(reference: Reference) -> tuple[WrittenPackage, frozenset[str]] | CompatkitError:
        refused: list[CompatkitError] = []
        with on_refusal(refused.append):
            return _write(store, packages, reference, graph)
        return refused[0]

    with ThreadPoolExecutor(min(settings.jobs, packages.store.parallel)) as pool:
        try:
            for done, (reference, outcome) in enumerate(zip(wanted, pool.map(write, wanted), strict=True), 1):
                settings.progress(done, len(wanted), f"writing {reference}")
                if isinstance(outcome, CompatkitError):
                    report.refused.append(Refusal(str(reference), outcome))
                    continue
                written, signatures = outcome
                (report.created if written.created else report.existing).append(reference)
                report.signatures += len(signatures & written.blobs.keys())
                for digest, size in written.blobs.items():
                    if digest in signatures:
                        continue
                    owner = graph.blobs[digest].owner if digest in graph.blobs else "packages"
                    report.copied.append(CopiedBlob(digest, size, owner))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    with convert_errors(packages.url, "write", ""):
        packages.store.finish()
    if report.created and not packages.store.exclusive:
        report.notes.append(race_note(packages.url))
    return report


def _write(
    store: Store, packages: Packages, reference: Reference, graph: BlobGraph
) -> tuple[WrittenPackage, frozenset[str]]:
    """Write one version; return the digests of its signatures too."""
    package, signatures = _package(store, reference, graph)

    def read(digest: str) -> memoryview:
        return memoryview(signatures[digest] if digest in signatures else store.objects.view(digest))

    with convert_errors(packages.url, "write", str(reference)):
        return packages.store.write(package, read), frozenset(signatures)


def _package(store: Store, reference: Reference, graph: BlobGraph) -> tuple[Package, dict[str, bytes]]:
    """Return a version as a package, and the contents of its signatures by digest."""
    own = str(reference.digest)
    digests = graph.blobs_of(own)
    manifest = from_bytes(store.objects.read(own, max_bytes=MAX_BYTES), what=f"manifest of {reference}")
    titles = {own: "manifest.json", manifest.payload.file.blob: "weights.safetensors"}
    files: list[PackageFile] = []
    for digest in sorted(digests, key=lambda digest: (digest != own, digest)):
        role = ROLES.get(graph.blobs[digest].role, "blob")
        graph.origin.fetch(graph.blobs[digest])
        size = store.objects.size(digest)
        if size is None:
            size = len(memoryview(store.objects.view(digest)))  # restores it, or raises
        files.append(PackageFile(digest, size, role, titles.get(digest, "")))
    contents: dict[str, bytes] = {}
    components = sorted(graph.components(digests))
    signatures = SignatureFiles(graph.origin)
    signatures.read(components)
    for component in components:
        signatures.of(component)  # raises if there are too many
        for file in signatures.split_valid([component])[0]:
            digest = digest_of(file.data)
            contents[digest] = file.data
            title = file.path.rpartition("/")[2]
            files.append(PackageFile(digest, len(file.data), "signature", title, component))
    about = manifest.about
    texts = {"title": about.title, "description": about.description, "license": about.license}
    present = {key: text for key, text in texts.items() if text}
    version = str(reference.version or Version(0, 0, 0))
    return Package(reference.name, version, tuple(files), manifest.kind, present), contents
