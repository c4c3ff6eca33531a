"""Reading components from an OCI image layout: verified as strictly as from any remote, and named last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.codec import MAX_BYTES, is_digest, loads
from compatkit.errors import CompatkitError, EnvironmentFailure, FormatError, IntegrityError, LayoutError
from compatkit.registry import disk as durable
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.folders import IntoFolder
from compatkit.registry.copy.move import Move
from compatkit.registry.copy.places import Incoming, Source, by_digest, opened_file
from compatkit.registry.copy.report import Moved, Refusal
from compatkit.registry.copy.vouchers import FOLDER as SIGNATURES
from compatkit.registry.names import Reference
from compatkit.registry.oci.descriptors import (
    IMAGE,
    LAYOUT,
    SIGNATURE,
    SIGNS,
    TITLE,
    Image,
    descriptor,
    parse,
)
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT, References, version_line
from compatkit.registry.remotes.mirror import mirrored, scratch
from compatkit.registry.remotes.pushpull import asked
from compatkit.registry.store import Store

MARKER, INDEX = "oci-layout", "index.json"
MOST = 4 * 2**20
"""Bytes of an image manifest: container registries take no more."""


@attrs.define(eq=False)
class ImageLayout(Source):
    """Components in an image layout; only read.

    Attributes:
        root: The folder.
        mirror: An empty folder, for names and versions.
        refuse: Is told of an entry that cannot be read, and why; the others can be.
        images: What was read of each version, by ``name@version``.
    """

    root: Path
    mirror: Path
    refuse: Callable[[str, CompatkitError], None]
    images: dict[str, Image] = attrs.field(init=False, factory=dict)
    _signatures: dict[str, str] = attrs.field(init=False, factory=dict)
    _by_digest: dict[str, list[Reference]] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        """Read the index.

        Raises:
            LayoutError: The folder is no image layout.
            FormatError: The index is not strict.
            IntegrityError: A link or file stands where it keeps its blobs.
        """
        listed = entries(self.root)
        durable.check_folders(self.root / "blobs" / "sha256", self.root)
        for place, one in enumerate(listed):
            what = f"{self.root / INDEX}: manifests[{place}]"
            try:
                self._enter(one, what)
            except EnvironmentFailure:
                raise
            except CompatkitError as error:
                self.refuse(what, error)
        self._by_digest.update(by_digest(self.references))

    @property
    def where(self) -> str:
        """Its path."""
        return str(self.root)

    @property
    def advice(self) -> str:
        """What to do where something in it is missing or damaged."""
        return "Copy it from the container registry again, or export it again."

    @property
    def references(self) -> References:
        """Names and versions."""
        return References(self.mirror)

    @property
    def scratch(self) -> str:
        """The folder of this machine in which names and versions are."""
        return str(self.mirror)

    def size(self, digest: str) -> int | None:
        """Return the number of bytes that it has for a digest; None if it has none."""
        try:
            return os.lstat(self._place(digest)).st_size
        except FileNotFoundError:
            return None

    def opened(self, digest: str, whose: str) -> AbstractContextManager[Incoming]:
        """Open a blob."""
        path = self._place(digest)
        with environment("read", path):
            descriptor = durable.open_plain(path, self.root)
        if descriptor is None:
            raise IntegrityError(f"{whose}: {self.root} lacks {digest}. {self.advice}", subject=digest)
        return opened_file(descriptor, path)

    def notes(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all signatures below folders; a layout holds no other small files."""
        return sorted(path for path in self._signatures if path.rpartition("/")[0] in folders)

    def note(self, path: str) -> bytes | None:
        """Return a signature."""
        digest = self._signatures.get(path)
        if digest is None:
            return None
        with self.opened(digest, path) as incoming:
            return incoming.read(LIMIT + 1)

    def named(self, digest: str) -> list[Reference]:
        """Return all versions that point at a manifest."""
        return self._by_digest.get(digest, [])

    def _place(self, digest: str) -> Path:
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _enter(self, entry: Any, what: str) -> None:
        """Take in one entry of the index, if it is a component's."""
        image = descriptor(entry, what)
        if image.kind != IMAGE:
            return
        if image.size > MOST or self.size(image.digest) != image.size:
            raise IntegrityError(
                f"{what}: {image.digest} should have {image.size} bytes, at most {MOST}; it has "
                f"{self.size(image.digest)}.",
                subject=image.digest,
            )
        found = parse(loads(self.document(image.digest, what), what=what), what)
        if found is None:
            return
        for one in found.layers:
            if self.size(one.digest) != one.size:
                raise IntegrityError(
                    f"{found.name}@{found.version}: the layer {one.digest} should have {one.size} bytes, it has "
                    f"{self.size(one.digest)}. {self.advice}",
                    subject=one.digest,
                )
        self._keep(found, what)

    def _keep(self, found: Image, what: str) -> None:
        reference = f"{found.name}@{found.version}"
        known = self.images.setdefault(reference, found)
        if known.component != found.component:
            raise FormatError(
                f"{what}: {reference} is {known.component} in one entry and {found.component} in another.",
                subject=reference,
            )
        path = f"refs/{found.name}/@versions/{found.version}"
        mirrored(self.mirror, path, version_line(reference, found.component))
        for one in found.layers:
            notes = one.notes
            if one.kind == SIGNATURE and is_digest(notes.get(SIGNS)) and "/" not in notes.get(TITLE, "/"):
                signed = notes[SIGNS].removeprefix("sha256:")
                self._signatures[f"{SIGNATURES}/{signed}/{notes[TITLE]}"] = one.digest


def import_layout(
    store: Store | Callable[[], Store],
    folder: Path,
    patterns: Iterable[str] | None = None,
    *,
    choice: Choice | None = None,
) -> Moved:
    """Copy components of an image layout to a registry.

    Args:
        store: Where they shall be too; or what makes it, called once the layout is known to hold what is asked for.
        folder: The layout; only read.
        patterns: Names, globs, or references for one version of each; None takes all there is.
        choice: What is moved, and how; a layout holds no results or aliases.

    Returns:
        What came here, and what was refused; its ``check`` raises where something was.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The folder is no image layout.
        EnvironmentFailure: Disk full, no right to write; the same call goes on where it stopped.
    """
    chosen = attrs.evolve(choice or Choice(), evidence=False, aliases=False)
    refused: list[Refusal] = []

    def refuse(what: str, error: CompatkitError) -> None:
        if chosen.strict:
            raise error
        refused.append(Refusal(what, error))

    with scratch() as mirror:
        layout = ImageLayout(folder.expanduser().absolute(), Path(mirror), refuse)
        wanted = asked(layout, patterns)
        target = IntoFolder(store() if callable(store) else store)
        moved = Move(layout, target, chosen).run(wanted)
    moved.refused[:0] = refused
    return moved


def entries(root: Path) -> list[Any]:
    """Return the descriptors of the index of a layout.

    Raises:
        LayoutError: The folder is no image layout.
        FormatError: The index is not strict.
    """
    marker = durable.read(root / MARKER, root, limit=LIMIT)
    said: Any = None if marker is None else loads(marker[0], what=str(root / MARKER))
    if not isinstance(said, dict) or said.get("imageLayoutVersion") != LAYOUT["imageLayoutVersion"]:
        raise LayoutError(
            f"{root} is no OCI image layout: {MARKER} should hold {LAYOUT}. Write one with `compatkit oci "
            "export`, `skopeo copy docker://... oci:FOLDER:TAG` or `oras copy --to-oci-layout`.",
            subject=root,
        )
    found = durable.read(root / INDEX, root, limit=MAX_BYTES + 1)
    value: Any = None if found is None else loads(found[0], what=str(root / INDEX))
    if (
        not isinstance(value, dict)
        or value.get("schemaVersion") != 2
        or not isinstance(value.get("manifests"), list)
    ):
        raise FormatError(f"{root / INDEX}: expected schemaVersion 2 and a list of manifests.", subject=root)
    return value["manifests"]
