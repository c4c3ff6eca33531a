"""Writing components into an OCI image layout: blobs first, the index last; the same components give the same bytes."""

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
    """The blobs of an image layout, written.

    Attributes:
        objects: Blobs of the registry.
        folder: Of the layout's blobs.
        written: Sizes of those that are new, by digest.
    """

    objects: Objects
    folder: Path
    written: dict[str, int] = attrs.field(factory=dict)
    _there: set[str] = attrs.field(init=False, factory=set)

    def copy(self, digest: str) -> int:
        """Make sure that a blob of the registry is there and good; return its size."""
        data = memoryview(self.objects.view(digest))
        self.put(data, digest)
        return len(data)

    def put(self, data: memoryview | bytes, digest: str) -> None:
        """Write bytes under their digest, unless they are there.

        Args:
            data: The bytes.
            digest: Their SHA-256.
        """
        path = self.folder / digest.removeprefix("sha256:")
        if digest not in self._there and not self._is_good(path, digest, len(data)):
            durable.replace_file(path, data)
            self.written[digest] = len(data)
        self._there.add(digest)

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
    """Write components into an image layout, which is made, or goes on.

    Each version is one image; parents come along inside it. Withdrawn versions, results, aliases and policies stay.

    Args:
        store: Where the components are.
        folder: New, empty, or an image layout.
        patterns: Names, globs, or references for one version of each.
        versions: ``"all"`` takes all versions of the names; ``"latest"`` one each.
        progress: Called with done, total and what is being done.

    Returns:
        What is new there, and what was refused; its ``check`` raises where something was.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The folder holds something else.
        EnvironmentFailure: Disk full, no right to write.
    """
    found = chosen(store.references, patterns, versions)
    wanted = [one for one in found if one.version not in store.references.withdrawn(one.name)]
    folder = Path(local(folder, "an image layout")).expanduser().absolute()
    moved, known = Moved(), _prepare(folder)
    blobs, closure = Blobs(store.objects, folder / "blobs" / "sha256"), Closure(StoreOrigin(store))
    closure.enter(wanted)
    for place, one in enumerate(wanted):
        progress(place, len(wanted), f"writing {one}")
        try:
            entry = _write(one, closure, blobs)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            moved.refused.append(Refusal(str(one), error))
            continue
        _enter(known, one, entry, moved)
    moved.items = [
        Item(digest, size, closure.blobs[digest].whose if digest in closure.blobs else "images")
        for digest, size in blobs.written.items()
    ]
    blobs.put(b"{}", str(EMPTY["digest"]))
    durable.replace_file(folder / INDEX, _index(known))
    return moved


def ref(name: str, version: Version) -> str:
    """Return the name of a version in an index: ``digits/mnist.head:1.0.0``.

    The specification allows no two separators in a row but ``--``; where a component's name has some they become
    ``--``, and the name itself stands in the annotations.

    Args:
        name: Of the component.
        version: Of the component.
    """
    plain = f"{name}:{version}"
    return plain if _REF.fullmatch(plain) else f"{_SEPARATORS.sub('--', name)}:{version}"


def _prepare(folder: Path) -> list[dict[str, Any]]:
    """Make a folder an image layout if it is not one; return the entries of its index.

    Raises:
        LayoutError: It holds something else.
    """
    begun = {"blobs", INDEX, MARKER}  # as an export leaves it that was cut off
    foreign = folder.is_dir() and any(name not in begun and name[0] != "." for name in os.listdir(folder))
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
    for place, one in enumerate(listed):
        Descriptor.read(one, f"{folder / INDEX}: manifests[{place}]")
    return listed


def _write(one: Reference, closure: Closure, blobs: Blobs) -> dict[str, Any]:
    """Write the blobs of a version and its image manifest; return the entry of the index."""
    digest, version = str(one.digest), one.version or Version(0, 0, 0)
    held = closure.of(digest)
    components = sorted(closure.components(held))
    manifest = from_bytes(blobs.objects.read(digest, most=MAX_BYTES), what=f"manifest of {one}")
    titles = {digest: "manifest.json", manifest.payload.file.blob: "weights.safetensors"}
    kinds = {"component": MANIFEST, "payload": WEIGHTS}
    layers: list[Descriptor] = []
    for part in sorted(held, key=lambda part: (part != digest, part)):
        notes = {TITLE: titles[part]} if part in titles else {}
        kind = kinds.get(closure.blobs[part].how, BLOB)
        layers.append(Descriptor(kind, part, blobs.copy(part), notes))
    signatures = SignatureFiles(closure.origin)
    signatures.read(components)
    for component in components:
        signatures.of(component)  # raises where they are too many
        for note in signatures.sorted_out([component])[0]:
            signed = digest_of(note.data)
            blobs.put(note.data, signed)
            notes = {SIGNS: component, TITLE: note.path.rpartition("/")[2]}
            layers.append(Descriptor(SIGNATURE, signed, len(note.data), notes))
    about = manifest.about
    texts = {"title": about.title, "description": about.description, "licenses": about.license}
    own = {NAME: one.name, VERSION: str(version), COMPONENT: digest}
    image = dumps(
        {
            "schemaVersion": 2,
            "mediaType": IMAGE_TYPE,
            "artifactType": ARTIFACT,
            "config": EMPTY,
            "layers": [layer.to_json() for layer in layers],
            "annotations": {
                TITLE: one.name,
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
        "annotations": {REF_NAME: ref(one.name, version), **own},
    }


def _enter(known: list[dict[str, Any]], one: Reference, entry: dict[str, Any], moved: Moved) -> None:
    """Add an entry to an index; of the same component, which was signed meanwhile, it takes the old one's place."""
    name = _annotation(entry, REF_NAME)
    same = [other for other in known if _annotation(other, REF_NAME) == name]
    strange = [
        other
        for other in same
        if other["digest"] != entry["digest"] and _annotation(other, COMPONENT) != one.digest
    ]
    if strange:
        error = VersionExists(
            f"{one} is the component {one.digest}, and its name {name!r} belongs to the image "
            f"{strange[0]['digest']} of {_annotation(strange[0], COMPONENT) or 'another component'} in the layout. A "
            "version is never rewritten; export into a new folder.",
            subject=str(one),
        )
        moved.refused.append(Refusal(str(one), error))
        return
    known[:] = [other for other in known if other not in same]
    known.append(entry)
    (moved.there if same else moved.made).append(one)


def _index(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return an index, its entries in order of their names and digests."""
    ordered = sorted(entries, key=lambda one: (_annotation(one, REF_NAME), one["digest"]))
    return dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": ordered})


def _annotation(entry: dict[str, Any], key: str) -> str:
    """Return an annotation of an entry of an index; empty if it has none."""
    return entry.get("annotations", {}).get(key, "")
