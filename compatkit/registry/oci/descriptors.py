"""OCI image manifests and indexes of components: media types, annotations, canonical bytes.

After the OCI Image Format Specification 1.1 (opencontainers/image-spec): a component version is an image manifest with
an ``artifactType`` and the empty config; its layers are the component's manifest first, then everything that the
manifest refers to. Layers are the same bytes, under the same digests, as in a registry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from compatkit.contracts.codec import dumps, is_digest
from compatkit.errors import FormatError, InvalidName
from compatkit.registry.names import Version, check_name

LAYOUT = {"imageLayoutVersion": "1.0.0"}
IMAGE = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = {
    "mediaType": "application/vnd.oci.empty.v1+json",
    "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    "size": 2,
    "data": "e30=",
}
"""The config of an artifact that needs none: the two bytes ``{}``."""
ARTIFACT = "application/vnd.compatkit.component.v1"
MANIFEST = "application/vnd.compatkit.manifest.v1+json"
WEIGHTS = "application/vnd.compatkit.weights.v1.safetensors"
BLOB = "application/vnd.compatkit.blob.v1"
SIGNATURE = "application/vnd.compatkit.signature.v1"
LAYERS = (MANIFEST, WEIGHTS, BLOB, SIGNATURE)
REF_NAME = "org.opencontainers.image.ref.name"
TITLE = "org.opencontainers.image.title"
NAME, VERSION, KIND, COMPONENT, SIGNS = (
    f"vnd.compatkit.{one}" for one in ("name", "version", "kind", "component", "signs")
)
_REF = re.compile(
    r"[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*)*"
)
_SEPARATORS = re.compile(r"[-._]{2,}")


@attrs.frozen
class Descriptor:
    """What an index says of an image manifest, or an image manifest of a layer.

    Attributes:
        kind: Media type.
        digest: Of its bytes.
        size: Their number.
        notes: Annotations.
    """

    kind: str
    digest: str
    size: int
    notes: Mapping[str, str] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        plain = {"mediaType": self.kind, "digest": self.digest, "size": self.size}
        return {**plain, "annotations": dict(self.notes)} if self.notes else plain


@attrs.frozen
class Image:
    """The image manifest of a component version, as far as it is read here.

    Attributes:
        name: Of the component.
        version: Its number.
        layers: Its own manifest first.
    """

    name: str
    version: Version
    layers: tuple[Descriptor, ...]

    @property
    def component(self) -> str:
        """Digest of the component's manifest."""
        return self.layers[0].digest


def image(
    name: str, version: Version, kind: str, about: dict[str, str], layers: Sequence[Descriptor]
) -> bytes:
    """Return the image manifest of a component version.

    Args:
        name: Of the component.
        version: Its number.
        kind: ``"extractor"``, ``"head"``, ...
        about: Texts for people by what follows ``org.opencontainers.image.``; empty ones are left out.
        layers: Its own manifest first.
    """
    told = {f"org.opencontainers.image.{key}": text for key, text in about.items() if text}
    value = {
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "artifactType": ARTIFACT,
        "config": EMPTY,
        "layers": [one.to_json() for one in layers],
        "annotations": {
            TITLE: name,
            **told,
            "org.opencontainers.image.version": str(version),
            NAME: name,
            VERSION: str(version),
            KIND: kind,
            COMPONENT: layers[0].digest,
        },
    }
    return dumps(value)


def entry(name: str, version: Version, component: str, digest: str, size: int) -> dict[str, Any]:
    """Return what an index says of an image manifest, whose digest and size these are."""
    return {
        "mediaType": IMAGE,
        "artifactType": ARTIFACT,
        "digest": digest,
        "size": size,
        "annotations": {
            REF_NAME: ref(name, version),
            NAME: name,
            VERSION: str(version),
            COMPONENT: component,
        },
    }


def index(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return an index, its entries in order of their names and digests."""
    ordered = sorted(entries, key=lambda one: (note(one, REF_NAME), one["digest"]))
    return dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": ordered})


def note(entry: dict[str, Any], key: str) -> str:
    """Return an annotation of an entry of an index; empty if it has none."""
    return entry.get("annotations", {}).get(key, "")


def ref(name: str, version: Version) -> str:
    """Return the name of a version in an index: ``digits/mnist.head:1.0.0``.

    The specification allows no two separators in a row but ``--``; where a component's name has some they become
    ``--``, and the name itself stands in the annotations.
    """
    plain = f"{name}:{version}"
    return plain if _REF.fullmatch(plain) else f"{_SEPARATORS.sub('--', name)}:{version}"


def parse(value: Any, what: str) -> Image | None:
    """Read an image manifest, strictly as far as a component needs it; None if it is of something else.

    Raises:
        FormatError: It says that it is a component, and is not written as one.
    """
    if not isinstance(value, dict) or value.get("artifactType") != ARTIFACT:
        return None
    notes, layers = _notes(value, what), value.get("layers")
    config = descriptor(value.get("config"), f"{what}: config")
    if value.get("schemaVersion") != 2 or value.get("mediaType") != IMAGE or config.digest != EMPTY["digest"]:
        raise FormatError(
            f"{what}: expected schemaVersion 2, mediaType {IMAGE} and the empty config of an artifact."
        )
    if not isinstance(layers, list) or not layers:
        raise FormatError(f"{what}: expected layers, got {layers!r:.80}.")
    try:
        name, version = check_name(notes.get(NAME, "")), Version.parse(notes.get(VERSION, ""))
    except InvalidName as error:
        raise FormatError(f"{what}: the annotations {NAME} and {VERSION}: {error}") from None
    read = tuple(_layer(one, f"{what}: layers[{place}]") for place, one in enumerate(layers))
    if read[0].kind != MANIFEST:
        raise FormatError(f"{what}: the first layer should be {MANIFEST}, it is {read[0].kind}.")
    return Image(name, version, read)


def _layer(value: Any, what: str) -> Descriptor:
    layer = descriptor(value, what)
    if layer.kind not in LAYERS:
        raise FormatError(f"{what}: expected one of {', '.join(LAYERS)}, got {layer.kind!r:.100}.")
    return layer


def descriptor(value: Any, what: str) -> Descriptor:
    """Read a descriptor.

    Raises:
        FormatError: It is none, or of another hash than sha256.
    """
    if not isinstance(value, dict) or not isinstance(value.get("mediaType"), str):
        raise FormatError(f"{what}: expected a descriptor with a mediaType, got {value!r:.100}.")
    digest, size = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not is_digest(digest) or type(size) is not int or not 0 <= size < 2**63:
        raise FormatError(
            f"{what}: expected a sha256 digest and a size, got {digest!r:.100} and {size!r:.40}."
        )
    return Descriptor(value["mediaType"], digest, size, _notes(value, what))


def _notes(value: dict[str, Any], what: str) -> dict[str, str]:
    notes = value.get("annotations", {})
    if not isinstance(notes, dict) or not all(isinstance(one, str) for one in notes.values()):
        raise FormatError(f"{what}: annotations are texts, got {notes!r:.100}.")
    return notes
