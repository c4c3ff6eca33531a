"""Write components into an OCI image layout: blobs first, the index last; equal components give equal bytes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.manifest import from_bytes
from compatkit.errors import CompatkitError, EnvironmentFailure, LayoutError, VersionExists
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import MAX_BYTES, dumps
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.choice import Versions, chosen
from compatkit.registry.copy.report import Item, Moved, Refusal
from compatkit.registry.copy.smallfiles import SignatureFiles
from compatkit.registry.copy.stores import StoreOrigin
from compatkit.registry.copy.transfer import Closure
from compatkit.registry.names import Reference, Version
from compatkit.registry.oci.read import (
    ARTIFACT,
    BLOB,
    COMPONENT,
    EMPTY,
    IMAGE_TYPE,
    INDEX,
    KIND,
    LAYOUT,
    MANIFEST,
    MARKER,
    NAME,
    SIGNATURE,
    SIGNS,
    TITLE,
    VERSION,
    WEIGHTS,
    Descriptor,
    entries,
)
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
_REF = re.compile(
    r"[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*(?:/[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*)*"
)
_SEPARATORS = re.compile(r"[-._]{2,}")


@attrs.define(eq=False)
class Blobs:
    """The blobs of an image layout that is written.

    Attributes:
        objects: Blobs of the registry.
        folder: Of the layout's blobs.
        written: Sizes of new ones by digest.
    """

    objects: Objects
    folder: Path
    written: dict[str, int] = attrs.field(factory=dict)
    _known: set[str] = attrs.field(init=False, factory=set)

    def copy(self, digest: str) -> int:
        """Copy a blob of the registry unless the layout has it; return its size."""
        data = memoryview(self.objects.view(digest))
        self.put(data, digest)
        return len(data)

    def put(self, data: memoryview | bytes, digest: str) -> None:
        """Write bytes under their digest unless the layout has them.

        Args:
            data: The bytes.
            digest: Their SHA-256.
        """
        path = self.folder / digest.removeprefix("sha256:")
        if digest not in self._known and not self._is_good(path, digest, len(data)):
            durable.replace_file(path, data)
            self.written[digest] = len(data)
        self._known.add(digest)

    def _is_good(self, path: Path, digest: str, size: int) -> bool:
        with environment("read", path):
            if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
                return False
            with open(path, "rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == digest


def export(
    store: Store,
    folder: str | os.PathLike[str],
    patterns: Iterable[str] = ("*",),
    *,
    versions: Versions = "all",
    progress: Progress = lambda done, total, what: None,
) -> Moved:
    """Write components into an image layout, creating or extending it.

    Each version is one image, with its parents inside. Withdrawn versions, results, aliases and policies are left out.

    Args:
        store: Registry to copy from.
        folder: New, empty, or an image layout.
        patterns: Names, globs, or references for one version of each.
        versions: ``"all"`` takes all versions of the names; ``"latest"`` one each.
        progress: Called with done, total and what is being done.

    Returns:
        What was written and refused; its ``check`` raises if something was refused.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The folder holds something else.
        EnvironmentFailure: Disk full, no write permission.
    """
    selected = chosen(store.references, patterns, versions)
    wanted = [
        reference
        for reference in selected
        if reference.version not in store.references.withdrawn(reference.name)
    ]
    folder = Path(local(folder, "an image layout")).expanduser().absolute()
    moved, known = Moved(), _prepare(folder)
    blobs, closure = Blobs(store.objects, folder / "blobs" / "sha256"), Closure(StoreOrigin(store))
    closure.enter(wanted)
    for done, reference in enumerate(wanted):
        progress(done, len(wanted), f"writing {reference}")
        try:
            entry = _write(reference, closure, blobs)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            moved.refused.append(Refusal(str(reference), error))
            continue
        _enter(known, reference, entry, moved)
    moved.items = [
        Item(digest, size, closure.blobs[digest].owner if digest in closure.blobs else "images")
        for digest, size in blobs.written.items()
    ]
    blobs.put(b"{}", str(EMPTY["digest"]))
    durable.replace_file(folder / INDEX, _index(known))
    return moved


def ref(name: str, version: Version) -> str:
    """Return the name of a version in an index: ``digits/mnist.head:1.0.0``.

    The specification allows no two separators in a row but ``--``, so those of a component's name become ``--``; the
    annotations have the name itself.

    Args:
        name: Of the component.
        version: Of the component.
    """
    plain = f"{name}:{version}"
    return plain if _REF.fullmatch(plain) else f"{_SEPARATORS.sub('--', name)}:{version}"


def _prepare(folder: Path) -> list[dict[str, Any]]:
    """Make a folder an image layout unless it is one; return the entries of its index.

    Raises:
        LayoutError: It holds something else.
    """
    own = {"blobs", INDEX, MARKER}  # of an interrupted export
    foreign = folder.is_dir() and any(name not in own and name[0] != "." for name in os.listdir(folder))
    if (folder.exists() and not folder.is_dir()) or (foreign and not (folder / MARKER).exists()):
        raise LayoutError(f"{folder} holds other files and no {MARKER}; name a new folder.", subject=folder)
    blobs = folder / "blobs" / "sha256"
    durable.check_folders(blobs, folder)
    with environment("write below", folder):
        blobs.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        durable.replace_file(folder / INDEX, _index([]))
        durable.replace_file(folder / MARKER, dumps(LAYOUT))
    listed = entries(folder)
    for place, entry in enumerate(listed):
        Descriptor.read(entry, f"{folder / INDEX}: manifests[{place}]")
    return listed


def _write(reference: Reference, closure: Closure, blobs: Blobs) -> dict[str, Any]:
    """Write the blobs of a version and its image manifest; return the entry of the index."""
    digest, version = str(reference.digest), reference.version or Version(0, 0, 0)
    digests = closure.of(digest)
    components = sorted(closure.components(digests))
    manifest = from_bytes(blobs.objects.read(digest, most=MAX_BYTES), what=f"manifest of {reference}")
    titles = {digest: "manifest.json", manifest.payload.file.blob: "weights.safetensors"}
    kinds = {"component": MANIFEST, "payload": WEIGHTS}
    layers: list[Descriptor] = []
    for part in sorted(digests, key=lambda part: (part != digest, part)):
        annotations = {TITLE: titles[part]} if part in titles else {}
        kind = kinds.get(closure.blobs[part].how, BLOB)
        layers.append(Descriptor(kind, part, blobs.copy(part), annotations))
    signatures = SignatureFiles(closure.origin)
    signatures.read(components)
    for component in components:
        signatures.of(component)  # raises if there are too many
        for file in signatures.valid_and_refused([component])[0]:
            signed = digest_of(file.data)
            blobs.put(file.data, signed)
            annotations = {SIGNS: component, TITLE: file.path.rpartition("/")[2]}
            layers.append(Descriptor(SIGNATURE, signed, len(file.data), annotations))
    about = manifest.about
    texts = {"title": about.title, "description": about.description, "licenses": about.license}
    own = {NAME: reference.name, VERSION: str(version), COMPONENT: digest}
    image = dumps(
        {
            "schemaVersion": 2,
            "mediaType": IMAGE_TYPE,
            "artifactType": ARTIFACT,
            "config": EMPTY,
            "layers": [layer.to_json() for layer in layers],
            "annotations": {
                TITLE: reference.name,
                **{f"org.opencontainers.image.{key}": text for key, text in texts.items() if text},
                "org.opencontainers.image.version": str(version),
                **own,
                KIND: manifest.kind,
            },
        }
    )
    blobs.put(image, digest_of(image))
    return {
        "mediaType": IMAGE_TYPE,
        "artifactType": ARTIFACT,
        "digest": digest_of(image),
        "size": len(image),
        "annotations": {REF_NAME: ref(reference.name, version), **own},
    }


def _enter(known: list[dict[str, Any]], reference: Reference, entry: dict[str, Any], moved: Moved) -> None:
    """Add an entry to an index; it replaces an older one of the same component, which was signed since."""
    name = _annotation(entry, REF_NAME)
    same = [other for other in known if _annotation(other, REF_NAME) == name]
    conflicting = [
        other
        for other in same
        if other["digest"] != entry["digest"] and _annotation(other, COMPONENT) != reference.digest
    ]
    if conflicting:
        error = VersionExists(
            f"{reference} is the component {reference.digest}, and its name {name!r} belongs to the image "
            f"{conflicting[0]['digest']} of {_annotation(conflicting[0], COMPONENT) or 'another component'} in the "
            "layout. A version is never rewritten; export into a new folder.",
            subject=str(reference),
        )
        moved.refused.append(Refusal(str(reference), error))
        return
    known[:] = [other for other in known if other not in same]
    known.append(entry)
    (moved.existing if same else moved.made).append(reference)


def _index(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return an index with its entries sorted by name and digest."""
    ordered = sorted(entries, key=lambda entry: (_annotation(entry, REF_NAME), entry["digest"]))
    return dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": ordered})


def _annotation(entry: dict[str, Any], key: str) -> str:
    """Return an annotation of an index entry, or an empty text."""
    return entry.get("annotations", {}).get(key, "")
