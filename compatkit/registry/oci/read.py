"""Read components from an OCI image layout, verified as strictly as from a remote.

After the OCI Image Format Specification 1.1 (opencontainers/image-spec): a component version is an image manifest with
an ``artifactType`` and the empty config; its layers are the component's manifest first, then everything that the
manifest refers to. Layers are the same bytes, under the same digests, as in a registry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    IntegrityError,
    InvalidName,
    LayoutError,
)
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import MAX_BYTES, is_digest, loads
from compatkit.registry import disk as durable
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.endpoints import Incoming, Origin, open_file
from compatkit.registry.copy.move import Move
from compatkit.registry.copy.report import Moved, Refusal
from compatkit.registry.copy.stores import StoreTarget
from compatkit.registry.names import Version, check_name
from compatkit.registry.refs import LIMIT, References, version_line
from compatkit.registry.remotes.pushpull import requested_patterns
from compatkit.registry.remotes.remote import scratch_folder, write_scratch
from compatkit.registry.signing.signatures import FOLDER as SIGNATURES
from compatkit.registry.store import Store

MARKER, INDEX = "oci-layout", "index.json"
LAYOUT = {"imageLayoutVersion": "1.0.0"}
MOST_BYTES = 4 * 2**20
"""Most bytes of an image manifest that container registries accept."""
IMAGE_TYPE = "application/vnd.oci.image.manifest.v1+json"
EMPTY = {
    "mediaType": "application/vnd.oci.empty.v1+json",
    "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    "size": 2,
    "data": "e30=",
}
"""The config of an artifact without one: the two bytes ``{}``."""
ARTIFACT = "application/vnd.compatkit.component.v1"
MANIFEST = "application/vnd.compatkit.manifest.v1+json"
WEIGHTS = "application/vnd.compatkit.weights.v1.safetensors"
BLOB = "application/vnd.compatkit.blob.v1"
SIGNATURE = "application/vnd.compatkit.signature.v1"
LAYERS = (MANIFEST, WEIGHTS, BLOB, SIGNATURE)
TITLE = "org.opencontainers.image.title"
NAME, VERSION, KIND, COMPONENT, SIGNS = (
    f"vnd.compatkit.{field}" for field in ("name", "version", "kind", "component", "signs")
)


@attrs.frozen
class Descriptor:
    """An entry of an index for an image manifest, or of an image manifest for a layer.

    Attributes:
        kind: Media type.
        digest: Of its bytes.
        size: Number of bytes.
        annotations: Texts by key.
    """

    kind: str
    digest: str
    size: int
    annotations: Mapping[str, str] = attrs.field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        plain = {"mediaType": self.kind, "digest": self.digest, "size": self.size}
        return {**plain, "annotations": dict(self.annotations)} if self.annotations else plain

    @classmethod
    def read(cls, value: Any, what: str) -> Descriptor:
        """Read a descriptor.

        Args:
            value: JSON value.
            what: Where it is, for messages.

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


@attrs.frozen
class Image:
    """The image manifest of a component version.

    Attributes:
        name: Of the component.
        version: Its number.
        layers: The component's manifest first.
    """

    name: str
    version: Version
    layers: tuple[Descriptor, ...]

    @property
    def component(self) -> str:
        """Digest of the component's manifest."""
        return self.layers[0].digest

    @classmethod
    def read(cls, value: Any, what: str) -> Image | None:
        """Read the image manifest of a component; None if the image is something else.

        Args:
            value: JSON value.
            what: Where it is, for messages.

        Raises:
            FormatError: A component whose image manifest is malformed.
        """
        if not isinstance(value, dict) or value.get("artifactType") != ARTIFACT:
            return None
        annotations, layers = _annotations(value, what), value.get("layers")
        config = Descriptor.read(value.get("config"), f"{what}: config")
        kind = value.get("schemaVersion"), value.get("mediaType"), config.digest
        if kind != (2, IMAGE_TYPE, EMPTY["digest"]):
            raise FormatError(
                f"{what}: expected schemaVersion 2, mediaType {IMAGE_TYPE} and the empty config of an artifact."
            )
        if not isinstance(layers, list) or not layers:
            raise FormatError(f"{what}: expected layers, got {layers!r:.80}.")
        try:
            name, version = check_name(annotations.get(NAME, "")), Version.parse(annotations.get(VERSION, ""))
        except InvalidName as error:
            raise FormatError(f"{what}: the annotations {NAME} and {VERSION}: {error}") from None
        read = tuple(Descriptor.read(layer, f"{what}: layers[{place}]") for place, layer in enumerate(layers))
        for place, layer in enumerate(read):
            expected = (MANIFEST,) if place == 0 else LAYERS
            if layer.kind not in expected:
                raise FormatError(
                    f"{what}: layers[{place}]: expected one of {', '.join(expected)}, got {layer.kind!r:.100}."
                )
        return cls(name, version, read)


def _annotations(value: dict[str, Any], what: str) -> dict[str, str]:
    annotations = value.get("annotations", {})
    if not isinstance(annotations, dict) or not all(isinstance(text, str) for text in annotations.values()):
        raise FormatError(f"{what}: annotations are texts, got {annotations!r:.100}.")
    return annotations


@attrs.define(eq=False)
class ImageLayout(Origin):
    """Components in an image layout, as an origin.

    Attributes:
        root: The folder.
        mirror: Empty folder for names and versions.
        refuse: Called with an unreadable entry and its error.
    """

    root: Path
    mirror: str
    refuse: Callable[[str, CompatkitError], None]
    _images: dict[str, Image] = attrs.field(init=False, factory=dict)
    _signatures: dict[str, str] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Read the index.

        Raises:
            LayoutError: The folder is no image layout.
            FormatError: The index is not strict.
            IntegrityError: Its folder of blobs is a link or a file.
        """
        self.where, self.scratch = str(self.root), self.mirror
        self.references = References(Path(self.mirror))
        self.advice = "Copy it from the container registry again, or export it again."
        descriptors = entries(self.root)
        durable.check_folders(self.root / "blobs" / "sha256", self.root)
        for place, entry in enumerate(descriptors):
            what = f"{self.root / INDEX}: manifests[{place}]"
            try:
                self._enter(entry, what)
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                self.refuse(what, error)

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""
        try:
            return os.lstat(self._path(digest)).st_size
        except FileNotFoundError:
            return None

    def open(self, digest: str, owner: str) -> AbstractContextManager[Incoming]:
        """Open a blob."""
        incoming = open_file(self._path(digest), self.root)
        if incoming is None:
            raise self.missing(digest, owner)
        return incoming

    def small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all signatures below folders; a layout has no other small files."""
        return sorted(path for path in self._signatures if path.rpartition("/")[0] in folders)

    def small_file(self, path: str) -> bytes | None:
        """Return a signature."""
        digest = self._signatures.get(path)
        if digest is None:
            return None
        with self.open(digest, path) as incoming:
            return incoming.read(LIMIT + 1)

    def _path(self, digest: str) -> Path:
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _enter(self, entry: Any, what: str) -> None:
        """Add an entry of the index, if it is a component."""
        image = Descriptor.read(entry, what)
        if image.kind != IMAGE_TYPE:
            return
        if image.size > MOST_BYTES or self.size(image.digest) != image.size:
            raise IntegrityError(
                f"{what}: {image.digest} should have {image.size} bytes, at most {MOST_BYTES}; it has "
                f"{self.size(image.digest)}.",
                subject=image.digest,
            )
        component = Image.read(loads(self.document(image.digest, what), what=what), what)
        if component is None:
            return
        reference = f"{component.name}@{component.version}"
        for layer in component.layers:
            if self.size(layer.digest) != layer.size:
                raise IntegrityError(
                    f"{reference}: the layer {layer.digest} should have {layer.size} bytes, it has "
                    f"{self.size(layer.digest)}. {self.advice}",
                    subject=layer.digest,
                )
        known = self._images.setdefault(reference, component)
        if known.component != component.component:
            raise FormatError(
                f"{what}: {reference} is {known.component} in one entry and {component.component} in another.",
                subject=reference,
            )
        path = f"refs/{component.name}/@versions/{component.version}"
        write_scratch(self.scratch, path, version_line(reference, component.component))
        for layer in component.layers:
            annotations = layer.annotations
            if (
                layer.kind == SIGNATURE
                and is_digest(annotations.get(SIGNS))
                and "/" not in annotations.get(TITLE, "/")
            ):
                signed = annotations[SIGNS].removeprefix("sha256:")
                self._signatures[f"{SIGNATURES}/{signed}/{annotations[TITLE]}"] = layer.digest


def import_layout(
    store: Store | Callable[[], Store],
    folder: Path,
    patterns: Iterable[str] | None = None,
    *,
    choice: Choice | None = None,
) -> Moved:
    """Copy components of an image layout to a registry.

    Args:
        store: Registry to copy to, or a function that makes it, called after the patterns were found in the layout.
        folder: The layout; only read.
        patterns: Names, globs, or references for one version of each; None takes all.
        choice: What is copied, and how; a layout has no results or aliases.

    Returns:
        What was copied and refused; its ``check`` raises if something was refused.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The folder is no image layout.
        EnvironmentFailure: Disk full, no write permission; the same call continues.
    """
    chosen = attrs.evolve(choice or Choice(), evidence=False, aliases=False)
    refused: list[Refusal] = []

    def refuse(what: str, error: CompatkitError) -> None:
        if chosen.strict:
            raise error
        refused.append(Refusal(what, error))

    with scratch_folder() as scratch:
        layout = ImageLayout(Path(local(folder, "an image layout")).expanduser().absolute(), scratch, refuse)
        wanted = requested_patterns(layout, patterns)
        target = StoreTarget(store() if callable(store) else store)
        moved = Move(layout, target, chosen).run(wanted)
    moved.refused[:0] = refused
    return moved


def entries(root: Path) -> list[Any]:
    """Return the descriptors of the index of a layout.

    Raises:
        LayoutError: The folder is no image layout.
        FormatError: The index is not strict.
    """
    marker = _json(root, MARKER, LIMIT)
    if not isinstance(marker, dict) or marker.get("imageLayoutVersion") != LAYOUT["imageLayoutVersion"]:
        raise LayoutError(
            f"{root} is no OCI image layout: {MARKER} should hold {LAYOUT}. Write one with `compatkit oci "
            "export`, `skopeo copy docker://... oci:FOLDER:TAG` or `oras copy --to-oci-layout`.",
            subject=root,
        )
    value = _json(root, INDEX, MAX_BYTES + 1)
    if (
        not isinstance(value, dict)
        or value.get("schemaVersion") != 2
        or not isinstance(value.get("manifests"), list)
    ):
        raise FormatError(f"{root / INDEX}: expected schemaVersion 2 and a list of manifests.", subject=root)
    return value["manifests"]


def _json(root: Path, name: str, limit: int) -> Any:
    content = durable.read(root / name, root, limit=limit)
    return None if content is None else loads(content[0], what=str(root / name))
