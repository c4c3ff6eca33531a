"""OCI image layouts: folders that skopeo and oras copy to and from container registries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from compatkit import hookimpl
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    IntegrityError,
    LayoutError,
    VersionExists,
)
from compatkit.hooks import Register
from compatkit.registry.remotes.packages import (
    Package,
    PackageFolder,
    PackageStore,
    Read,
    Refuse,
    WrittenPackage,
    digest_of,
    dumps,
    loads,
)

from ._component_images import (
    ARTIFACT,
    COMPONENT,
    EMPTY,
    IMAGE_TYPE,
    INDEX_TYPE,
    LONGEST_IMAGE,
    REF_NAME,
    Descriptor,
    identity,
    image_of,
    read_image,
)

compatkit_api = 1
MARKER, INDEX, BLOBS = "oci-layout", "index.json", "blobs/sha256"
LAYOUT = {"imageLayoutVersion": "1.0.0"}
LONGEST_MARKER = 2**16
LONGEST_INDEX = 2**26
_REF = re.compile(
    r"[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*)*"
)
_SEPARATORS = re.compile(r"[-._]{2,}")


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``oci_layout``."""
    register("oci_layout", open_layout)


def open_layout(address: str) -> ImageLayout:
    """Return the packages in a folder.

    Args:
        address: ``oci-layout://FOLDER``.
    """
    return ImageLayout(PackageFolder(Path(address.partition("://")[2]).expanduser().absolute()))


@attrs.define(eq=False)
class ImageLayout(PackageStore):
    """Components in an image layout.

    Attributes:
        folder: The layout.
    """

    advice = "Copy it from the container registry again, or export it again."
    folder: PackageFolder
    _entries: list[dict[str, Any]] = attrs.field(init=False, factory=list)
    _known: set[str] = attrs.field(init=False, factory=set)

    def packages(self, refuse: Refuse) -> Iterator[Package]:
        """Yield the components of the index; images of other programs are ignored.

        Raises:
            LayoutError: The folder is not an image layout.
            FormatError: The index is malformed.
            IntegrityError: The folder of blobs is a link or a file.
        """
        entries = self._index()
        self.folder.check(BLOBS)
        for number, entry in enumerate(entries):
            what = f"{self.folder.root / INDEX}: manifests[{number}]"
            try:
                package = self._package(entry, what)
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                refuse(what, error)
                continue
            if package is not None:
                yield package

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""
        return self.folder.size(_path(digest))

    def read(self, digest: str, start: int, count: int) -> bytes | None:
        """Return at most ``count`` bytes of a blob, or None."""
        return self.folder.read(_path(digest), start, count)

    def begin(self) -> None:
        """Create the image layout if it is missing, and read its index.

        Raises:
            LayoutError: The folder contains other files.
        """
        root, names = self.folder.root, self.folder.names() if self.folder.root.is_dir() else []
        known = {"blobs", INDEX, MARKER}  # of an interrupted export
        foreign = any(name not in known and name[0] != "." for name in names)
        if (root.exists() and not root.is_dir()) or (foreign and MARKER not in names):
            raise LayoutError(f"{root} contains other files and no {MARKER}; use a new folder.", subject=root)
        self.folder.check(BLOBS)
        self.folder.make(BLOBS)
        if MARKER not in names:
            self.folder.replace(INDEX, _index_bytes([]))
            self.folder.replace(MARKER, dumps(LAYOUT))
        self._entries = self._index()
        for number, entry in enumerate(self._entries):
            Descriptor.read(entry, f"{root / INDEX}: manifests[{number}]")

    def write(self, package: Package, read: Read) -> WrittenPackage:
        """Write the blobs of a version and its image manifest, and add it to the index.

        Raises:
            VersionExists: The layout has another component with this name.
        """
        blobs: dict[str, int] = {}
        for file in package.files:
            self._put(read(file.digest), file.digest, blobs)
        image = dumps(image_of(package))
        digest = digest_of(image)
        self._put(image, digest, blobs)
        entry = {
            "mediaType": IMAGE_TYPE,
            "artifactType": ARTIFACT,
            "digest": digest,
            "size": len(image),
            "annotations": {REF_NAME: self.label(package.name, package.version), **identity(package)},
        }
        return WrittenPackage(self._enter(entry, package), blobs)

    def finish(self) -> None:
        """Write the empty config and the index."""
        self._put(b"{}", str(EMPTY["digest"]), {})
        self.folder.replace(INDEX, _index_bytes(self._entries))

    def label(self, name: str, version: str) -> str:
        """Return the name of a version in an index: ``digits/mnist.head:1.0.0``.

        The specification allows ``--`` as the only two separators in a row, so others in a component's name become
        ``--``; the annotations contain the unchanged name.

        Args:
            name: Name of the component.
            version: Version of the component.
        """
        plain = f"{name}:{version}"
        return plain if _REF.fullmatch(plain) else f"{_SEPARATORS.sub('--', name)}:{version}"

    def _index(self) -> list[Any]:
        """Return the descriptors of the index.

        Raises:
            LayoutError: The folder is no image layout.
            FormatError: The index is not strict.
        """
        root = self.folder.root
        marker = self._json(MARKER, LONGEST_MARKER)
        if not isinstance(marker, dict) or marker.get("imageLayoutVersion") != LAYOUT["imageLayoutVersion"]:
            raise LayoutError(
                f"{root} is no OCI image layout: expected {LAYOUT} in {MARKER}. Create one with `compatkit push "
                "oci-layout://FOLDER`, `skopeo copy docker://... oci:FOLDER:TAG` or `oras copy --to-oci-layout`.",
                subject=root,
            )
        index = self._json(INDEX, LONGEST_INDEX)
        if (
            not isinstance(index, dict)
            or index.get("schemaVersion") != 2
            or type(index.get("manifests")) is not list
        ):
            raise FormatError(
                f"{root / INDEX}: expected schemaVersion 2 and a list of manifests.", subject=root
            )
        return index["manifests"]

    def _json(self, name: str, limit: int) -> Any:
        data = self.folder.read(name, 0, limit + 1)
        return None if data is None else loads(data, what=str(self.folder.root / name))

    def _package(self, entry: Any, what: str) -> Package | None:
        """Return the component of an entry of the index; None if the image is something else.

        Raises:
            FormatError: A component whose image manifest is malformed.
            IntegrityError: The image manifest is missing, too long, or does not match its digest.
        """
        image = Descriptor.read(entry, what)
        if image.media_type != IMAGE_TYPE:
            return None
        size = self.size(image.digest)
        if image.size > LONGEST_IMAGE or size != image.size:
            raise IntegrityError(
                f"{what}: expected {image.size} bytes of {image.digest}, at most {LONGEST_IMAGE}, got {size}.",
                subject=image.digest,
            )
        data = self.read(image.digest, 0, image.size) or b""
        if digest_of(data) != image.digest:
            raise IntegrityError(
                f"{what}: the content of {image.digest} has another digest. {self.advice}",
                subject=image.digest,
            )
        return read_image(loads(data, what=what), what)

    def _put(self, data: bytes | memoryview, digest: str, blobs: dict[str, int]) -> None:
        """Write a blob unless the layout has it, and record it in ``blobs``."""
        if digest not in self._known and not self.folder.holds(_path(digest), digest, len(data)):
            self.folder.replace(_path(digest), data)
            blobs[digest] = len(data)
        self._known.add(digest)

    def _enter(self, entry: dict[str, Any], package: Package) -> bool:
        """Add an entry to the index; return whether it is new. It replaces an older one with fewer signatures."""
        name, component = _annotation(entry, REF_NAME), package.files[0].digest
        same = [other for other in self._entries if _annotation(other, REF_NAME) == name]
        for other in same:
            if other["digest"] != entry["digest"] and _annotation(other, COMPONENT) != component:
                reference = f"{package.name}@{package.version}"
                raise VersionExists(
                    f"{reference} is the component {component}, but the layout has the image {other['digest']} of "
                    f"{_annotation(other, COMPONENT) or 'another component'} as {name!r}. A version is never "
                    f"rewritten: copy it to another number (`compatkit copy {reference} --as OTHER[@VERSION]`) and "
                    "push that, or use a new folder.",
                    subject=reference,
                )
        self._entries = [other for other in self._entries if other not in same] + [entry]
        return not same


def _path(digest: str) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def _annotation(entry: dict[str, Any], key: str) -> str:
    """Return an annotation of an index entry, or an empty text."""
    return entry.get("annotations", {}).get(key, "")


def _index_bytes(entries: list[dict[str, Any]]) -> bytes:
    """Return an index with its entries sorted by name and digest."""
    ordered = sorted(entries, key=lambda entry: (_annotation(entry, REF_NAME), entry["digest"]))
    return dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": ordered})
