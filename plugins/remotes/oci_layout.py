"""OCI image layouts: folders that skopeo and oras copy to and from container registries.

After the OCI Image Format Specification 1.1 (opencontainers/image-spec): a component version is an image manifest with
an ``artifactType`` and the empty config; its layers are the component's manifest first, then everything that the
manifest refers to. Layers are the same bytes, under the same digests, as in a registry. Equal components give equal
bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
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
    PackageFile,
    PackageFolder,
    PackageStore,
    Read,
    Refuse,
    Role,
    WrittenPackage,
    dumps,
    is_digest,
    loads,
)

compatkit_api = 1
MARKER, INDEX, BLOBS = "oci-layout", "index.json", "blobs/sha256"
LAYOUT = {"imageLayoutVersion": "1.0.0"}
LONGEST_MARKER = 2**16
LONGEST_INDEX = 2**26
LONGEST_IMAGE = 2**22
"""Maximum size in bytes of an image manifest that container registries accept."""
IMAGE_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
EMPTY = {
    "mediaType": "application/vnd.oci.empty.v1+json",
    "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    "size": 2,
    "data": "e30=",
}
"""The config of an artifact without one: the two bytes ``{}``."""
ARTIFACT = "application/vnd.compatkit.component.v1"
MEDIA_TYPES: dict[Role, str] = {
    "manifest": "application/vnd.compatkit.manifest.v1+json",
    "weights": "application/vnd.compatkit.weights.v1.safetensors",
    "blob": "application/vnd.compatkit.blob.v1",
    "signature": "application/vnd.compatkit.signature.v1",
}
ROLES: dict[str, Role] = {media_type: role for role, media_type in MEDIA_TYPES.items()}
TITLE = "org.opencontainers.image.title"
REF_NAME = "org.opencontainers.image.ref.name"
NAME, VERSION, KIND, COMPONENT, SIGNS = (
    f"vnd.compatkit.{field}" for field in ("name", "version", "kind", "component", "signs")
)
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


@attrs.frozen
class Descriptor:
    """An entry of an index for an image manifest, or of an image manifest for a layer.

    Attributes:
        media_type: Media type of the content.
        digest: Digest of the content.
        size: Size in bytes.
        annotations: Annotations.
    """

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        plain = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return {**plain, "annotations": dict(self.annotations)} if self.annotations else plain

    @classmethod
    def read(cls, value: Any, what: str) -> Descriptor:
        """Read a descriptor.

        Args:
            value: JSON value.
            what: Position in its document, for messages.

        Raises:
            FormatError: Not a descriptor, or its hash is not sha256.
        """
        if not isinstance(value, dict) or not isinstance(value.get("mediaType"), str):
            raise FormatError(f"{what}: expected a descriptor with a mediaType, got {value!r:.100}.")
        digest, size = value.get("digest"), value.get("size")
        if not is_digest(digest) or type(size) is not int or not 0 <= size < 2**63:
            raise FormatError(
                f"{what}: expected a sha256 digest and a size, got {digest!r:.100} and {size!r:.40}."
            )
        return cls(value["mediaType"], str(digest), size, _annotations(value, what))


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
        layers: list[Descriptor] = []
        for file in package.files:
            self._put(read(file.digest), file.digest, blobs)
            annotations = {TITLE: file.title} if file.title else {}
            if file.signs:
                annotations = {SIGNS: file.signs, TITLE: file.title}
            layers.append(Descriptor(MEDIA_TYPES[file.role], file.digest, file.size, annotations))
        own = {NAME: package.name, VERSION: package.version, COMPONENT: package.files[0].digest}
        image = dumps(_image(package, layers, own))
        digest = f"sha256:{hashlib.sha256(image).hexdigest()}"
        self._put(image, digest, blobs)
        entry = {
            "mediaType": IMAGE_TYPE,
            "artifactType": ARTIFACT,
            "digest": digest,
            "size": len(image),
            "annotations": {REF_NAME: self.label(package.name, package.version), **own},
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
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != image.digest:
            raise IntegrityError(
                f"{what}: the content of {image.digest} has another digest. {self.advice}",
                subject=image.digest,
            )
        return _read_image(loads(data, what=what), what)

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
                    "rewritten; use a new folder.",
                    subject=reference,
                )
        self._entries = [other for other in self._entries if other not in same] + [entry]
        return not same


def _path(digest: str) -> str:
    return f"{BLOBS}/{digest.removeprefix('sha256:')}"


def _image(package: Package, layers: list[Descriptor], own: dict[str, str]) -> dict[str, Any]:
    """Return the image manifest of a version."""
    texts = {"licenses" if key == "license" else key: text for key, text in package.texts.items()}
    return {
        "schemaVersion": 2,
        "mediaType": IMAGE_TYPE,
        "artifactType": ARTIFACT,
        "config": EMPTY,
        "layers": [layer.to_json() for layer in layers],
        "annotations": {
            TITLE: package.name,
            **{f"org.opencontainers.image.{key}": text for key, text in texts.items()},
            "org.opencontainers.image.version": package.version,
            **own,
            KIND: package.kind,
        },
    }


def _read_image(value: Any, what: str) -> Package | None:
    """Read an image manifest; None if the image is not a component.

    Args:
        value: JSON value.
        what: Position in the layout, for messages.

    Raises:
        FormatError: The image manifest of a component is malformed.
    """
    if not isinstance(value, dict) or value.get("artifactType") != ARTIFACT:
        return None
    annotations, layers = _annotations(value, what), value.get("layers")
    config = Descriptor.read(value.get("config"), f"{what}: config")
    if (value.get("schemaVersion"), value.get("mediaType"), config.digest) != (
        2,
        IMAGE_TYPE,
        EMPTY["digest"],
    ):
        raise FormatError(
            f"{what}: expected schemaVersion 2, mediaType {IMAGE_TYPE} and the empty config of an artifact."
        )
    if not isinstance(layers, list) or not layers:
        raise FormatError(f"{what}: expected layers, got {layers!r:.80}.")
    files: list[PackageFile] = []
    for number, layer in enumerate(layers):
        descriptor = Descriptor.read(layer, f"{what}: layers[{number}]")
        role = ROLES.get(descriptor.media_type)
        if role is None or (number == 0 and role != "manifest"):
            expected = MEDIA_TYPES["manifest"] if number == 0 else ", ".join(ROLES)
            raise FormatError(
                f"{what}: layers[{number}]: expected {expected}, got {descriptor.media_type!r:.100}."
            )
        signs = descriptor.annotations.get(SIGNS, "")
        title = descriptor.annotations.get(TITLE, "")
        signed = signs if role == "signature" and is_digest(signs) and title else ""
        files.append(PackageFile(descriptor.digest, descriptor.size, role, title, signed))
    return Package(annotations.get(NAME, ""), annotations.get(VERSION, ""), tuple(files))


def _annotations(value: dict[str, Any], what: str) -> dict[str, str]:
    annotations = value.get("annotations", {})
    if not isinstance(annotations, dict) or not all(isinstance(text, str) for text in annotations.values()):
        raise FormatError(f"{what}: expected annotations with text values, got {annotations!r:.100}.")
    return annotations


def _annotation(entry: dict[str, Any], key: str) -> str:
    """Return an annotation of an index entry, or an empty text."""
    return entry.get("annotations", {}).get(key, "")


def _index_bytes(entries: list[dict[str, Any]]) -> bytes:
    """Return an index with its entries sorted by name and digest."""
    ordered = sorted(entries, key=lambda entry: (_annotation(entry, REF_NAME), entry["digest"]))
    return dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": ordered})
