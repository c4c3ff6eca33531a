"""Writing components into an OCI image layout: blobs first, the index last; the same components give the same bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.codec import MAX_BYTES, dumps
from compatkit.contracts.codec import digest as digest_of
from compatkit.contracts.manifest import from_bytes
from compatkit.errors import CompatkitError, EnvironmentFailure, LayoutError, VersionExists
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.copy import selection
from compatkit.registry.copy.closure import Closure
from compatkit.registry.copy.folders import Folder
from compatkit.registry.copy.report import Item, Moved, Progress, Refusal
from compatkit.registry.copy.selection import Versions
from compatkit.registry.copy.vouchers import FOLDER, Vouchers
from compatkit.registry.names import Reference
from compatkit.registry.oci import descriptors as oci
from compatkit.registry.oci.read import INDEX, MARKER, entries
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store


@attrs.define(eq=False)
class Blobs:
    """The blobs of an image layout, written; see ``closure.Carrier``.

    Attributes:
        source: Blobs of the registry.
        root: Of the layout.
        written: Those that are new.
    """

    source: Objects
    root: Path
    written: dict[str, int] = attrs.field(factory=dict)
    _there: set[str] = attrs.field(init=False, factory=set)

    def holds(self, digest: str) -> bool:
        """Tell whether a blob was seen to be there."""
        return digest in self._there

    def bring(self, digest: str, size: int | None, whose: str, examine: object = None) -> bool:
        """See to it that a blob is there and good; True if it was written."""
        data = memoryview(self.source.view(digest))
        return self.put(data, digest)

    def put(self, data: memoryview | bytes, digest: str) -> bool:
        """Write bytes under their digest, unless they are there."""
        path = self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")
        if digest in self._there or self._is_good(path, digest, len(data)):
            self._there.add(digest)
            return False
        durable.replace_file(path, data)
        self._there.add(digest)
        self.written[digest] = len(data)
        return True

    def _is_good(self, path: Path, digest: str, size: int) -> bool:
        with environment("read", path):
            if path.is_symlink() or not path.is_file() or path.stat().st_size != size:
                return False
            with open(path, "rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == digest


def export(
    store: Store,
    folder: Path,
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
    found = selection.chosen(store.references, patterns, versions)
    wanted = [one for one in found if one.version not in store.references.withdrawn(one.name)]
    folder = folder.expanduser().absolute()
    moved, known = Moved(), _prepare(folder)
    blobs = Blobs(store.objects, folder)
    closure = Closure(Folder(store), blobs)
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
        Item(digest, size, closure.parts[digest].whose if digest in closure.parts else "images")
        for digest, size in blobs.written.items()
    ]
    blobs.put(b"{}", str(oci.EMPTY["digest"]))
    durable.replace_file(folder / INDEX, oci.index(known))
    return moved


def _prepare(folder: Path) -> list[dict[str, Any]]:
    """Make a folder an image layout, if it is none; return the entries of its index.

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
        durable.replace_file(folder / INDEX, oci.index([]))
        durable.replace_file(folder / MARKER, dumps(oci.LAYOUT))
    listed = entries(folder)
    for place, one in enumerate(listed):
        oci.descriptor(one, f"{folder / INDEX}: manifests[{place}]")
    return listed


def _write(one: Reference, closure: Closure, blobs: Blobs) -> dict[str, Any]:
    """Write the blobs of a version and its image manifest; return the entry of the index."""
    digest = str(one.digest)
    held = closure.of(digest)
    for part in held:
        closure.bring(part)
    manifest = from_bytes(blobs.source.read(digest, most=MAX_BYTES), what=f"manifest of {one}")
    layers = [_layer(part, digest, manifest.payload.file.blob, closure) for part in _own_first(held, digest)]
    layers += _signatures(held, closure, blobs)
    about = manifest.about
    texts = {"title": about.title, "description": about.description, "licenses": about.licence}
    if one.version is None:
        raise VersionExists(f"{one} is not resolved to a version.", subject=str(one))
    data = oci.image(one.name, one.version, manifest.kind, texts, layers)
    blobs.put(data, digest_of(data))
    return oci.entry(one.name, one.version, digest, digest_of(data), len(data))


def _own_first(held: list[str], digest: str) -> list[str]:
    return [digest, *sorted(part for part in held if part != digest)]


def _layer(part: str, digest: str, weights: str, closure: Closure) -> oci.Descriptor:
    kinds = {"component": oci.MANIFEST, "payload": oci.WEIGHTS}
    titles = {digest: "manifest.json", weights: "weights.safetensors"}
    notes = {oci.TITLE: titles[part]} if part in titles else {}
    size = closure.source.size(part) or 0
    return oci.Descriptor(kinds.get(closure.parts[part].how, oci.BLOB), part, size, notes)


def _signatures(held: list[str], closure: Closure, blobs: Blobs) -> list[oci.Descriptor]:
    components = [part for part in held if closure.parts[part].how == "component"]
    vouchers, layers = Vouchers(), list[oci.Descriptor]()
    vouchers.read(closure.source, components)
    for component in sorted(components):
        vouchers.of(component)
        for path, content in vouchers.sound(component):
            blobs.put(content, digest_of(content))
            title = path.removeprefix(f"{FOLDER}/").partition("/")[2]
            notes = {oci.SIGNS: component, oci.TITLE: title}
            layers.append(oci.Descriptor(oci.SIGNATURE, digest_of(content), len(content), notes))
    return layers


def _enter(known: list[dict[str, Any]], one: Reference, entry: dict[str, Any], moved: Moved) -> None:
    """Add an entry to an index; of the same component, which was signed meanwhile, it takes the old one's place."""
    same = [other for other in known if oci.note(other, oci.REF_NAME) == oci.note(entry, oci.REF_NAME)]
    others = [other for other in same if other["digest"] != entry["digest"]]
    strange = [other for other in others if oci.note(other, oci.COMPONENT) != one.digest]
    if strange:
        error = VersionExists(
            f"{one} is the component {one.digest}, and its name {oci.note(entry, oci.REF_NAME)!r} belongs to the image "
            f"{strange[0]['digest']} of {oci.note(strange[0], oci.COMPONENT) or 'another component'} in the layout. "
            "A version is never rewritten; export into a new folder.",
            subject=str(one),
        )
        moved.refused.append(Refusal(str(one), error))
        return
    known[:] = [other for other in known if other not in same]
    known.append(entry)
    (moved.there if same else moved.made).append(one)
