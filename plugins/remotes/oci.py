"""Container registries: components as images, one repository per name, one tag per version.

After the OCI Distribution Specification 1.1. Each signature is a manifest of its own whose subject is the image.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from tempfile import TemporaryFile
from typing import IO, TypeVar

import attrs

from compatkit import hookimpl
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    LayoutError,
    UsageError,
    VersionExists,
)
from compatkit.hooks import Register
from compatkit.registry.remotes.packages import (
    VERSION,
    Package,
    PackageFile,
    PackageStore,
    Read,
    Refuse,
    WrittenPackage,
    digest_of,
    dumps,
    loads,
)

from ._blob_uploads import BlobUploads
from ._component_images import (
    EMPTY,
    IMAGE_TYPE,
    LONGEST_IMAGE,
    Descriptor,
    image_of,
    read_image,
)
from ._distribution import Distribution, RangeIgnored
from ._image_signatures import missing_signatures, read_signatures, write_signature
from ._registry_session import RegistrySession
from ._repository_names import REPLACED, is_loopback, is_repository, repository_of, split_address

compatkit_api = 1
WORKERS = 8
"""Number of parallel requests for manifests and small blobs."""
NO_CONFIG = PackageFile(str(EMPTY["digest"]), 2, "blob")
"""The empty config of every image."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``oci``."""
    register("oci", open_registry)


def open_registry(address: str, *, plain_http: bool | None = None) -> ContainerRegistry:
    """Return the components below a prefix of a container registry.

    Args:
        address: ``oci://HOST[:PORT][/PREFIX]``.
        plain_http: Whether to use HTTP without encryption; None only for this machine.

    Raises:
        UsageError: The address is malformed.
        MissingDependency: urllib3 is not installed.
    """
    host, prefix = split_address(address)
    if not isinstance(plain_http, bool | None):
        raise UsageError(f"expected plain_http=true or false, got {plain_http!r:.40}")
    plain = is_loopback(host) if plain_http is None else plain_http
    return ContainerRegistry(Distribution(RegistrySession(host, plain)), prefix)


@attrs.define(eq=False)
class ContainerRegistry(PackageStore):
    """Components in a container registry.

    Attributes:
        registry: The registry.
        prefix: Repositories of components are below it; may be empty.
    """

    advice = "Push it there again from a registry that has it."
    parallel = WORKERS
    exclusive = False
    registry: Distribution
    prefix: str
    _uploads: BlobUploads = attrs.field(init=False)
    _sizes: dict[str, int] = attrs.field(init=False, factory=dict)
    _repositories: dict[str, str] = attrs.field(init=False, factory=dict)
    _signatures: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _spooled: dict[str, IO[bytes] | None] = attrs.field(init=False, factory=dict)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _blob_locks: dict[str, threading.Lock] = attrs.field(
        init=False, factory=lambda: defaultdict(threading.Lock)
    )

    def __attrs_post_init__(self) -> None:
        self._uploads = BlobUploads(self.registry)

    # --- reading

    def packages(self, refuse: Refuse) -> Iterator[Package]:
        """Yield all components below the prefix."""
        yield from self.named_packages(["*"], refuse)

    def named_packages(self, patterns: Sequence[str], refuse: Refuse) -> Iterator[Package]:
        """Yield the components below the prefix whose names may match; images of other programs are ignored.

        Raises:
            LayoutError: There are no repositories below the prefix, or no container registry.
            UsageError: The registry does not list its repositories, and a pattern is no name.
        """
        self.registry.check()
        repositories = self._matching(patterns)
        images = [
            (repository, tag)
            for repository, tags in _in_parallel(self._versions, repositories)
            for tag in tags
        ]

        def read(image: tuple[str, str]) -> Package | CompatkitError | None:
            try:
                return self._package(*image)
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                return error

        for (repository, tag), package in _in_parallel(read, images):
            if isinstance(package, CompatkitError):
                refuse(f"{self._address(repository)}:{tag}", package)
            elif package is not None:
                for file in package.files:
                    self._sizes.setdefault(file.digest, file.size)
                    self._repositories.setdefault(file.digest, repository)
                yield package

    def exists(self, names: Sequence[str]) -> bool:
        """Return whether there are components below the prefix, or one of some names if they are not listed."""
        self.registry.check()
        listed = self._listed()
        if listed is not None:
            return bool(listed)
        return any(
            tags is not None for _, tags in _in_parallel(self.registry.tags, [*map(self._repository, names)])
        )

    def size(self, digest: str) -> int | None:
        """Return the size of a file as its image states it, or None."""
        return self._sizes.get(digest)

    def read(self, digest: str, start: int, count: int) -> bytes | None:
        """Return at most ``count`` bytes of a file, or None."""
        if digest in self._signatures:
            return self._signatures[digest][start : start + count]
        repository, size = self._repositories.get(digest), self._sizes.get(digest, 0)
        if repository is None:
            return None
        if digest not in self._spooled:
            with suppress(RangeIgnored):
                return self.registry.read_blob(repository, digest, start, count, size)
        with self._lock:
            if digest not in self._spooled:  # fetched once as a whole
                file = TemporaryFile()
                present = self.registry.download_blob(repository, digest, size, file)
                self._spooled[digest] = file if present else None
            spooled = self._spooled[digest]
            if spooled is None:
                return None
            spooled.seek(start)
            return spooled.read(count)

    def _matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the repositories of patterns: those of names by their names, others from the list."""
        names = [pattern for pattern in patterns if not set(pattern) & set("*?[")]
        repositories = dict.fromkeys(filter(is_repository, map(self._repository, names)))
        if len(names) < len(patterns):
            listed = self._listed()
            if listed is None:
                raise UsageError(
                    f"{self._address()} does not list its repositories: name components in place of patterns, as in "
                    f"`compatkit pull oci://{self._address()} digits/mnist.head`.",
                    subject=self._address(),
                )
            if not listed:
                raise LayoutError(
                    f"There are no repositories below {self._address()}. Check the address, or push to it first.",
                    subject=self._address(),
                )
            for repository in listed:
                name = repository.removeprefix(f"{self.prefix}/") if self.prefix else repository
                if REPLACED in name or any(fnmatchcase(name, pattern) for pattern in patterns):
                    repositories[repository] = None
        return list(repositories)

    def _listed(self) -> list[str] | None:
        """Return the repositories below the prefix; None if the registry does not list them."""
        try:
            names = self.registry.repositories()
        except PermissionError:  # many registries list them for nobody
            return None
        if names is None:
            return None
        below = f"{self.prefix}/" if self.prefix else ""
        return [
            name for name in names if isinstance(name, str) and name.startswith(below) and is_repository(name)
        ]

    def _versions(self, repository: str) -> list[str]:
        """Return the tags of a repository that are versions."""
        tags = self.registry.tags(repository) or []
        return [tag for tag in tags if isinstance(tag, str) and VERSION.fullmatch(tag)]

    def _package(self, repository: str, tag: str) -> Package | None:
        """Return a version with its signatures; None if the image is something else.

        Raises:
            FormatError: The image or a signature is malformed.
            IntegrityError: A manifest does not match its digest, or the image is another version.
        """
        what = f"{self._address(repository)}:{tag}"
        manifest = self.registry.manifest(repository, tag)
        package = None if manifest is None else self._read_image(*manifest, what)
        if manifest is None or package is None:
            return None
        if self._repository(package.name) != repository or package.version != tag:
            raise FormatError(
                f"{what} is the image of {package.name!r:.80} {package.version!r:.40}: expected version {tag} of the "
                "component that its repository is named after. Push components with compatkit, or copy their images to "
                "repositories of the same name.",
                subject=what,
            )
        signatures = read_signatures(self.registry, repository, digest_of(manifest[0]), what)
        self._signatures.update((file.digest, data) for file, data in signatures.items())
        return attrs.evolve(package, files=(*package.files, *signatures))

    def _read_image(self, data: bytes, media_type: str, what: str) -> Package | None:
        return read_image(loads(data, what=what), what) if media_type == IMAGE_TYPE else None

    # --- writing

    def begin(self) -> None:
        """Check that the registry answers, and ask for the right to write from now on."""
        self.registry.rights = "pull,push"
        self.registry.check()

    def write(self, package: Package, read: Read) -> WrittenPackage:
        """Write the blobs, the image and the signatures of a version, and then its tag.

        Raises:
            VersionExists: The tag is another component or image.
        """
        repository, tag = self._repository(package.name), package.version
        signatures = [file for file in package.files if file.role == "signature"]
        layers = [file for file in package.files if file.role != "signature"]
        image = dumps(image_of(attrs.evolve(package, files=tuple(layers))))
        if len(image) > LONGEST_IMAGE:
            raise FormatError(
                f"{package.name}: expected an image manifest of at most {LONGEST_IMAGE} bytes, got {len(image)}."
            )
        blobs: dict[str, int] = {}
        existing = self._existing(package, repository)
        if existing is None:
            self._put([NO_CONFIG, *layers], repository, read, blobs)
            answer = self.registry.put_manifest(repository, digest_of(image), image)
            if answer.status != 201:
                raise answer.error(self.label(package.name, tag))
        subject = Descriptor(IMAGE_TYPE, digest_of(existing or image), len(existing or image))
        for manifest, signature in missing_signatures(self.registry, repository, subject, signatures).items():
            self._put([NO_CONFIG, signature], repository, read, blobs)
            write_signature(self.registry, repository, subject, manifest, signature)
        # looked up again, as the blobs may have taken long
        created = existing is None and self._existing(package, repository) is None
        if created:
            answer = self.registry.put_manifest(repository, tag, image)
            if self._existing(package, repository) is None:
                raise answer.error(self.label(package.name, tag))
        return WrittenPackage(created, blobs)

    def finish(self) -> None:
        """Do nothing: a version can be read once it is tagged."""

    def close(self) -> None:
        """Close connections and temporary files."""
        for file in self._spooled.values():
            if file is not None:
                file.close()
        self._spooled.clear()
        self.registry.session.close()

    def label(self, name: str, version: str) -> str:
        """Return the name of a version for other programs: ``HOST/PREFIX/NAME:VERSION``."""
        return f"{self._address(self._repository(name))}:{version}"

    def _existing(self, package: Package, repository: str) -> bytes | None:
        """Return the manifest that has the tag of a version; None if the tag is free.

        Raises:
            VersionExists: It is of another component, or of something else.
        """
        manifest = self.registry.manifest(repository, package.version)
        if manifest is None:
            return None
        what = f"{self._address(repository)}:{package.version}"
        try:
            other = self._read_image(*manifest, what)
        except CompatkitError:
            other = None
        expected = {file.digest for file in package.files if file.role != "signature"}
        if (
            other is None
            or (other.name, other.files[0].digest) != (package.name, package.files[0].digest)
            or not expected <= {file.digest for file in other.files}
        ):
            reference = f"{package.name}@{package.version}"
            described = (
                f"the component {other.files[0].digest} of {other.name!r:.80}"
                if other
                else "an image of something else"
            )
            raise VersionExists(
                f"{reference} is the component {package.files[0].digest}, but {what} is {described}. A tag is never "
                "rewritten: publish under another number, or push below another prefix.",
                subject=reference,
            )
        return manifest[0]

    def _put(self, files: Sequence[PackageFile], repository: str, read: Read, blobs: dict[str, int]) -> None:
        """Upload the blobs that a repository lacks, small ones in parallel, and record them in ``blobs``."""

        def put(file: PackageFile) -> bool:
            with self._lock:
                lock = self._blob_locks[file.digest]
            with lock:  # a blob that another repository is getting is mounted from there afterwards
                source = self._repositories.get(file.digest)
                if source == repository or self.registry.has_blob(repository, file.digest, file.size):
                    return False
                data = memoryview(b"{}") if file == NO_CONFIG else read(file.digest)
                uploaded = self._uploads.put(repository, file.digest, data, source)
                self._repositories[file.digest] = repository
                return uploaded

        for file, uploaded in _in_parallel(put, list(dict.fromkeys(files))):
            if uploaded and file != NO_CONFIG:
                blobs[file.digest] = file.size

    def _repository(self, name: str) -> str:
        return repository_of(self.prefix, name)

    def _address(self, repository: str | None = None) -> str:
        path = self.prefix if repository is None else repository
        return f"{self.registry.session.host}/{path}".rstrip("/")


def _in_parallel(work: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[tuple[_Item, _Result]]:
    """Yield each item with the result of ``work``, in order, computed in threads; raise the first error."""
    if not items:
        return
    with ThreadPoolExecutor(min(WORKERS, len(items))) as pool:
        yield from zip(items, pool.map(work, items), strict=True)
