"""Image manifests of components, after the OCI Image Format Specification 1.1 (opencontainers/image-spec).

A component version is an image manifest with an ``artifactType`` and the empty config; its layers are the component's
manifest first, then everything that the manifest refers to. Layers are the same bytes, under the same digests, as in a
registry. Equal components give equal bytes. In a folder, signatures are layers too; in a container registry, each is a
manifest of its own whose ``subject`` is the image, so that an image stays the same however often it is signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from compatkit.errors import FormatError
from compatkit.registry.remotes.packages import Package, PackageFile, Role, is_digest

LONGEST_IMAGE = 2**22
"""Maximum size in bytes of an image manifest that container registries accept."""
LONGEST_SIGNATURE = 2**14
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


def image_of(package: Package) -> dict[str, Any]:
    """Return the image manifest of a version, as JSON values.

    Args:
        package: Version; each of its files becomes a layer.
    """
    texts = {"licenses" if key == "license" else key: text for key, text in package.texts.items()}
    return {
        "schemaVersion": 2,
        "mediaType": IMAGE_TYPE,
        "artifactType": ARTIFACT,
        "config": EMPTY,
        "layers": [_layer(file).to_json() for file in package.files],
        "annotations": {
            TITLE: package.name,
            **{f"org.opencontainers.image.{key}": text for key, text in texts.items()},
            "org.opencontainers.image.version": package.version,
            **identity(package),
            KIND: package.kind,
        },
    }


def identity(package: Package) -> dict[str, str]:
    """Return the annotations that tell a version: name, number and digest of the component."""
    return {NAME: package.name, VERSION: package.version, COMPONENT: package.files[0].digest}


def signature_image(signature: PackageFile, subject: Descriptor) -> dict[str, Any]:
    """Return the manifest of a signature that refers to an image, as JSON values.

    Args:
        signature: The signature.
        subject: The image.
    """
    return {
        "schemaVersion": 2,
        "mediaType": IMAGE_TYPE,
        "artifactType": MEDIA_TYPES["signature"],
        "config": EMPTY,
        "layers": [_layer(signature).to_json()],
        "subject": subject.to_json(),
        "annotations": {SIGNS: signature.signs},
    }


def read_image(value: Any, what: str) -> Package | None:
    """Read an image manifest; None if the image is not a component.

    Args:
        value: JSON value.
        what: Position, for messages.

    Raises:
        FormatError: The image manifest of a component is malformed.
    """
    if not isinstance(value, dict) or value.get("artifactType") != ARTIFACT:
        return None
    files = _layers(value, what)
    if files[0].role != "manifest":
        raise FormatError(
            f"{what}: layers[0]: expected {MEDIA_TYPES['manifest']}, got {MEDIA_TYPES[files[0].role]}."
        )
    annotations = _annotations(value, what)
    return Package(annotations.get(NAME, ""), annotations.get(VERSION, ""), files)


def read_signature(value: Any, what: str) -> PackageFile | None:
    """Read the manifest of a signature; None if it is something else.

    Args:
        value: JSON value.
        what: Position, for messages.

    Raises:
        FormatError: The manifest of a signature is malformed.
    """
    if not isinstance(value, dict) or value.get("artifactType") != MEDIA_TYPES["signature"]:
        return None
    files = _layers(value, what)
    if len(files) != 1 or not files[0].signs:
        raise FormatError(f"{what}: expected one layer with a signature, its title and {SIGNS}.")
    return files[0]


def _layer(file: PackageFile) -> Descriptor:
    annotations = {TITLE: file.title} if file.title else {}
    if file.signs:
        annotations = {SIGNS: file.signs, TITLE: file.title}
    return Descriptor(MEDIA_TYPES[file.role], file.digest, file.size, annotations)


def _layers(value: dict[str, Any], what: str) -> tuple[PackageFile, ...]:
    """Return the layers of a manifest of compatkit's; at least one.

    Raises:
        FormatError: The manifest or a layer is malformed.
    """
    config, layers = Descriptor.read(value.get("config"), f"{what}: config"), value.get("layers")
    form = (value.get("schemaVersion"), value.get("mediaType"), config.digest)
    if form != (2, IMAGE_TYPE, EMPTY["digest"]):
        raise FormatError(
            f"{what}: expected schemaVersion 2, mediaType {IMAGE_TYPE} and the empty config of an artifact."
        )
    if not isinstance(layers, list) or not layers:
        raise FormatError(f"{what}: expected layers, got {layers!r:.80}.")
    files: list[PackageFile] = []
    for number, layer in enumerate(layers):
        descriptor = Descriptor.read(layer, f"{what}: layers[{number}]")
        role = ROLES.get(descriptor.media_type)
        if role is None:
            raise FormatError(
                f"{what}: layers[{number}]: expected {', '.join(ROLES)}, got {descriptor.media_type!r:.100}."
            )
        if role == "signature" and descriptor.size > LONGEST_SIGNATURE:
            raise FormatError(
                f"{what}: layers[{number}]: expected a signature of at most {LONGEST_SIGNATURE} bytes, got "
                f"{descriptor.size}."
            )
        signs = descriptor.annotations.get(SIGNS, "")
        title = descriptor.annotations.get(TITLE, "")
        signed = signs if role == "signature" and is_digest(signs) and title else ""
        files.append(PackageFile(descriptor.digest, descriptor.size, role, title, signed))
    return tuple(files)


def _annotations(value: dict[str, Any], what: str) -> dict[str, str]:
    annotations = value.get("annotations", {})
    if not isinstance(annotations, dict) or not all(isinstance(text, str) for text in annotations.values()):
        raise FormatError(f"{what}: expected annotations with text values, got {annotations!r:.100}.")
    return annotations
