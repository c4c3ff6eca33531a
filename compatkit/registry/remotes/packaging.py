"""Read components from packages of a plugin, and write them as packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from compatkit.contracts.manifest import from_bytes
from compatkit.errors import FormatError, IntegrityError, InvalidName, LayoutError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.copy.choice import Choice, chosen
from compatkit.registry.copy.endpoints import Incoming, Origin
from compatkit.registry.copy.local import LocalRegistry
from compatkit.registry.copy.report import Item, Moved, Refusal, refusing
from compatkit.registry.copy.small_files import SignatureFiles
from compatkit.registry.copy.transfer import Closure
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import LIMIT, References, version_line
from compatkit.registry.remotes.files import calling
from compatkit.registry.remotes.packages import Package, PackageFile, PackageStore, Role
from compatkit.registry.remotes.remote import read_ahead, scratch_folder, write_scratch
from compatkit.registry.signing.signatures import FOLDER as SIGNATURES
from compatkit.registry.store import Store

ROLES: Mapping[str, Role] = {"component": "manifest", "payload": "weights"}


@attrs.frozen(eq=False)
class Packages:
    """Packages at an address.

    Attributes:
        store: Packages as the plugin provides them.
        url: Address for messages, without secrets.
    """

    store: PackageStore
    url: str

    def read(self, refused: list[Refusal]) -> Iterator[Package]:
        """Yield all packages; add unreadable ones to ``refused``."""
        with calling(self.url, "list", ""):
            yield from self.store.packages(lambda what, error: refused.append(Refusal(what, error)))

    def exists(self) -> bool:
        """Return whether there are packages at the address."""
        try:
            list(self.read([]))
        except LayoutError:
            return False
        return True


@attrs.define(eq=False)
class PackageOrigin(Origin):
    """Components in packages, as an origin."""

    packages: Packages
    _folder: TemporaryDirectory[str] = attrs.field(init=False)
    _components: dict[str, str] = attrs.field(init=False, factory=dict)
    _signatures: dict[str, str] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Mirror the names and versions of all packages; unreadable ones are refused.

        Raises:
            LayoutError: There are no packages at the address.
        """
        self._folder = scratch_folder()
        try:
            self.where, self.scratch = self.packages.url, self._folder.name
            self.references = References(Path(self.scratch))
            self.advice = self.packages.store.advice
            for package in self.packages.read(self.refused):
                self._add(package)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the scratch folder."""
        self._folder.cleanup()

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""
        with calling(self.where, "look at", digest):
            return self.packages.store.size(digest)

    @contextmanager
    def open(self, digest: str, owner: str) -> Iterator[Incoming]:
        """Open a blob."""
        size = self.size(digest)
        if size is None:
            raise self.missing(digest, owner)

        def ask(start: int, count: int) -> bytes:
            with calling(self.where, "read", digest):
                data = self.packages.store.read(digest, start, count)
            if data is None:
                raise self.missing(digest, owner)
            return data[:count]

        with read_ahead(ask, size) as read:
            yield Incoming(f"{self.where}/{digest}", size, read)

    def small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all signatures in folders; packages have no other small files."""
        return sorted(path for path in self._signatures if path.rpartition("/")[0] in folders)

    def small_file(self, path: str) -> bytes | None:
        """Return a signature."""
        digest = self._signatures.get(path)
        if digest is None:
            return None
        with self.open(digest, path) as incoming:
            return incoming.read(LIMIT + 1)

    def _add(self, package: Package) -> None:
        """Mirror a package, or refuse it."""
        reference = f"{package.name}@{package.version}"
        with refusing(lambda error: self.refused.append(Refusal(reference, error))):
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
            raise FormatError(f"{self.where}: {error}") from None
        if not package.files or package.files[0].role != "manifest":
            raise FormatError(
                f"{self.where}: expected a manifest as first file of {reference}.", subject=reference
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
                f"{self.where}: {reference} is {known} in one package and {digest} in another.",
                subject=reference,
            )


def write_packages(store: Store, packages: Packages, patterns: Sequence[str], choice: Choice) -> Moved:
    """Write components as packages, each with its parents.

    Withdrawn versions, results, aliases and policies are left out.

    Args:
        store: Registry to copy from.
        packages: New, empty, or existing packages.
        patterns: Names, globs, or references for one version of each.
        choice: Versions, progress and dry run.

    Returns:
        What was written and refused.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The address contains something else.
        EnvironmentFailure: Disk full, no write permission.
    """
    selected = chosen(store.references, patterns, choice.versions)
    wanted = [
        reference
        for reference in selected
        if reference.version not in store.references.withdrawn(reference.name)
    ]
    closure = Closure(LocalRegistry(store))
    closure.add_components(wanted)
    moved = Moved(planned=choice.dry_run)
    if choice.dry_run:
        known: set[tuple[str, str]] = set()
        with suppress(LayoutError):  # nothing is there yet
            known.update((package.name, package.version) for package in packages.read([]))
        for reference in wanted:
            listed = (reference.name, str(reference.version)) in known
            (moved.existing if listed else moved.made).append(reference)
        return moved
    with calling(packages.url, "write", ""):
        packages.store.begin()
    for done, reference in enumerate(wanted):
        choice.progress(done, len(wanted), f"writing {reference}")
        with refusing(lambda error, what=str(reference): moved.refused.append(Refusal(what, error))):
            _write(store, packages, reference, closure, moved)
    with calling(packages.url, "write", ""):
        packages.store.finish()
    return moved


def _write(store: Store, packages: Packages, reference: Reference, closure: Closure, moved: Moved) -> None:
    """Write one version and report it."""
    package, signatures = _package(store, reference, closure)

    def read(digest: str) -> memoryview:
        return memoryview(signatures[digest] if digest in signatures else store.objects.view(digest))

    with calling(packages.url, "write", str(reference)):
        written = packages.store.write(package, read)
    (moved.made if written.created else moved.existing).append(reference)
    for digest, size in written.blobs.items():
        owner = closure.blobs[digest].owner if digest in closure.blobs else "packages"
        moved.items.append(Item(digest, size, owner))


def _package(store: Store, reference: Reference, closure: Closure) -> tuple[Package, dict[str, bytes]]:
    """Return a version as a package, and the contents of its signatures by digest."""
    own = str(reference.digest)
    digests = closure.blobs_of(own)
    manifest = from_bytes(store.objects.read(own, most=MAX_BYTES), what=f"manifest of {reference}")
    titles = {own: "manifest.json", manifest.payload.file.blob: "weights.safetensors"}
    files: list[PackageFile] = []
    for digest in sorted(digests, key=lambda digest: (digest != own, digest)):
        role = ROLES.get(closure.blobs[digest].how, "blob")
        size = len(memoryview(store.objects.view(digest)))
        files.append(PackageFile(digest, size, role, titles.get(digest, "")))
    contents: dict[str, bytes] = {}
    components = sorted(closure.components(digests))
    signatures = SignatureFiles(closure.origin)
    signatures.read(components)
    for component in components:
        signatures.of(component)  # raises if there are too many
        for file in signatures.valid_and_refused([component])[0]:
            digest = digest_of(file.data)
            contents[digest] = file.data
            title = file.path.rpartition("/")[2]
            files.append(PackageFile(digest, len(file.data), "signature", title, component))
    about = manifest.about
    texts = {"title": about.title, "description": about.description, "license": about.license}
    present = {key: text for key, text in texts.items() if text}
    version = str(reference.version or Version(0, 0, 0))
    return Package(reference.name, version, tuple(files), manifest.kind, present), contents
