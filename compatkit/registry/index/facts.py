"""Searchable facts of manifests, and their rows in the index."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256

import attrs

from compatkit.contracts.manifest import Manifest, from_bytes
from compatkit.errors import CompatkitError, FormatError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.index.search import searched, spelled
from compatkit.registry.index.stamps import mark, read_plain
from compatkit.registry.index.tables import Rows
from compatkit.registry.reach import How, names

_LISTS = json.JSONEncoder(separators=(",", ":"))
_FIELDS = frozenset(field.name for field in attrs.fields(Manifest))
_FEATURES_SECOND = ("NCHW", "NC")


@attrs.frozen
class ManifestFacts:
    """The searchable facts of one manifest.

    Attributes:
        bytes: Of the payload file.
        channels: Feature widths that are numbers: of the outputs of an extractor, of the inputs of anything else but a
            recombination, which has none.
        classes: Every name of every class, as ``spelled`` gives them, in the order of the outputs.
        anchors: Tensor digests that the part was trained against.
        parents: Relation and manifest digest.
        edges: How it names the digests that must be kept with it.
    """

    kind: str
    builder: str
    model: str
    cut: str
    parameters: int
    bytes: int
    title: str
    description: str
    license: str
    tags: Mapping[str, str]
    channels: tuple[int, ...]
    classes: tuple[tuple[str, ...], ...]
    anchors: tuple[str, ...]
    parents: tuple[tuple[str, str], ...]
    edges: Mapping[str, How]

    @property
    def words(self) -> str:
        """Title, description, model and tags, normalized for a search for words."""
        tags = (f"{key}={value}" for key, value in self.tags.items())
        return searched("\n".join((self.title, self.description, self.model, *tags)))


def facts_of(data: bytes, what: str) -> ManifestFacts:
    """Return the facts of a manifest.

    Args:
        data: Its bytes, already compared with their digest.
        what: Which manifest, for messages.

    Raises:
        FormatError: It is none that this version can read.
    """
    manifest = from_bytes(data, what=what)
    about, blueprint, contract = manifest.about, manifest.blueprint, manifest.contract
    extractor, recombination = blueprint.side == "extractor", blueprint.side == "recombination"
    ports = contract.structural.outputs if extractor else contract.structural.inputs
    widths = (port.channels for port in ports if not recombination)
    return ManifestFacts(
        manifest.kind,
        blueprint.builder,
        blueprint.model,
        blueprint.cut,
        manifest.payload.parameters,
        manifest.payload.file.bytes,
        about.title,
        about.description,
        about.license,
        about.tags,
        tuple(dict.fromkeys(width for width in widths if isinstance(width, int))),
        tuple(tuple(map(spelled, label.names)) for label in contract.data.labels or ()),
        tuple(anchor.digest for anchor in contract.protocol.anchors),
        tuple((parent.relation, parent.component) for parent in manifest.parents),
        dict(names(data, what, component=True)),
    )


@attrs.frozen(eq=False)
class Manifests:
    """Gives every manifest an id, and writes its facts into the tables the first time.

    Attributes:
        rows: Rows to write to.
        objects: Blobs to read from.
        now: Time in ns, taken before the first read.
    """

    rows: Rows
    objects: Objects
    now: int
    _known: dict[str, int] = attrs.field(init=False, factory=dict)
    _looked: set[str] = attrs.field(init=False, factory=set)
    _lists: set[str] = attrs.field(init=False, factory=set)
    _shards: dict[str, str] = attrs.field(init=False, factory=dict)

    def read(self, digest: str, *, again: bool = False) -> int:
        """Index a manifest and everything it refers to; a damaged one is stored with its error until its file changes.

        Args:
            digest: Of the manifest.
            again: Whether to read it although it was read before.

        Returns:
            Its number.
        """
        if not again and digest in self._known:
            return self._known[digest]
        left: list[tuple[str, How]] = [(digest, "component")]
        while left:
            blob, how = left.pop()
            if how == "component":
                number = self._number(blob)
                if number is not None and not (again and blob == digest):
                    continue
                number = self._known[blob] = number or self.rows.number("manifests")
                edges = self._manifest(number, blob)
            else:
                edges = self._document(blob)
            left += [edge for edge in edges.items() if edge[1] != "payload"]
        return self._known[digest]

    def _number(self, digest: str) -> int | None:
        """Return the id of a manifest that was read before, None if it was not."""
        number = self._known.get(digest)
        if number is None and not self.rows.fresh:
            known = "SELECT id FROM manifests WHERE digest = ? AND (kind NOT NULL OR error NOT NULL)"
            row = self.rows.connection.execute(known, (digest,)).fetchone()
            if row is not None:
                number = self._known[digest] = row[0]
        return number

    def _manifest(self, number: int, digest: str) -> Mapping[str, How]:
        try:
            about = self._facts(digest)
        except CompatkitError as error:
            known = mark([f"{self.objects.root}/blobs/sha256/{digest[7:9]}/{digest[7:]}"], self.now)
            self.rows.add("manifests", (number, digest, known, str(error), *(None,) * 11))
            return {}
        more = _LISTS.encode([about.tags, about.channels, about.anchors, about.parents])
        facts = (about.kind, about.builder, about.model, about.cut, about.parameters, about.bytes)
        shown = (about.title, about.license, len(about.classes) or None, more, about.words)
        self.rows.add("manifests", (number, digest, None, None, *facts, *shown))
        terms = [(f"tag:{key}", value) for key, value in about.tags.items()]
        terms += [("channels", str(width)) for width in about.channels]
        terms += [("anchor", anchor) for anchor in about.anchors]
        terms += [("parent", parent) for _, parent in about.parents]
        if about.classes:
            terms.append(("classes", self._list(about.classes)))
        self.rows.add("terms", *((field, value, number) for field, value in terms))
        self._edges(number, about.edges)
        return about.edges

    def _document(self, digest: str) -> Mapping[str, How]:
        """Return the digests in a blob that is no manifest, such as the record of a run; most hold none."""
        if digest in self._looked or digest in self._known:
            return {}
        self._looked.add(digest)
        known = "SELECT 1 FROM manifests WHERE digest = ?"
        if not self.rows.fresh and self.rows.connection.execute(known, (digest,)).fetchone():
            return {}
        try:
            if not self._blob(digest, 1)[1].startswith(b"{"):
                return {}
            data = self._blob(digest, MAX_BYTES)[1]
            if f"sha256:{sha256(data).hexdigest()}" != digest:
                return {}
            edges = dict(names(data, digest, component=False))
        except (OSError, FormatError):  # verify reports what is missing or damaged
            return {}
        if edges:
            number = self.rows.number("manifests")
            self.rows.add("manifests", (number, digest, None, None, *(None,) * 11))
            self._edges(number, edges)
        return edges

    def _edges(self, number: int, edges: Mapping[str, How]) -> None:
        self.rows.add("edges", *((number, edge, how != "payload") for edge, how in edges.items()))

    def _facts(self, digest: str) -> ManifestFacts:
        what = f"manifest {digest}"
        try:
            known, data = self._blob(digest, MAX_BYTES + 1)
        except OSError:
            known, data = None, b""
        if known is not None and known.st_size > MAX_BYTES:
            raise FormatError(f"{what}: at most {MAX_BYTES} bytes of JSON are read, got {known.st_size}.")
        if known is None or f"sha256:{sha256(data).hexdigest()}" != digest:
            # takes it back, or says what is wrong
            data = self.objects.read(digest, verify="always", most=MAX_BYTES, aside=False)
        return facts_of(data, what)

    def _blob(self, digest: str, limit: int) -> tuple[os.stat_result, bytes]:
        """Read the beginning of a blob.

        Raises:
            OSError: There is none, or its folder, or one above, is a symbolic link.
        """
        first = digest[7:9]
        if first not in self._shards:
            folder = self.objects.root / "blobs" / "sha256" / first
            self._shards[first] = ""
            with suppress(CompatkitError):
                durable.check_folders(folder, self.objects.root)
                self._shards[first] = str(folder)
        if not self._shards[first]:
            raise OSError(f"{self.objects.root}/blobs/sha256/{first} is no folder")
        return read_plain(f"{self._shards[first]}/{digest[7:]}", limit)

    def _list(self, classes: tuple[tuple[str, ...], ...]) -> str:
        """Keep a list of classes once, however many components have it; return its key."""
        key = sha256(repr(classes).encode()).hexdigest()[:32]
        if key not in self._lists:
            self._lists.add(key)
            self.rows.add(
                "classes", *((name, key) for name in {label for names in classes for label in names})
            )
        return key
