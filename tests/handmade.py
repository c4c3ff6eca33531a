"""Registries made by hand, file by file: small manifests, versions at any time, and changes that no program makes."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.contract import Anchor, Blueprint, Contract, Data, Label, Port, Protocol, Structural
from compatkit.contracts.manifest import About, Edge, Manifest, Parent, Payload, to_bytes
from compatkit.registry.layout_scan import Blob, scan
from compatkit.registry.store import Store

IMAGE = Port("image", ("N", 1, "H", "W"))
FEATURES = Port("features", ("N", 32, "H", "W"), range="nonnegative")
LOGITS = Port("logits", ("N", 2), layout="NC", pooled=True)
DATA = Data((16, 16), "L", (0.5,), (0.5,), labels=(Label("plane"), Label("automobile", ("car",))))
HEX = [hashlib.sha256(str(index).encode()).hexdigest() for index in range(10)]


def blobs_in(store: Store) -> dict[str, int]:
    """Return the sizes of all blobs that are in their place, by digest."""
    result = (entry for entry in scan(store.root, "blobs") if isinstance(entry, Blob))
    return {match.digest: os.stat(store.root / match.path).st_size for match in result}


def part(kind: Any = "extractor", model: str = "resnet20_cifar", **changes: Any) -> Manifest:
    """Return a small extractor or head; keywords replace fields of the manifest, ``channels`` the feature width."""
    features = attrs.evolve(FEATURES, shape=("N", changes.pop("channels", 32), "H", "W"))
    side: Any = "extractor" if kind == "extractor" else "head"
    ports = Structural((IMAGE,), (features,)) if side == "extractor" else Structural((features,), (LOGITS,))
    anchors = (Anchor("initial_weights", f"tensors:sha256:{HEX[1]}"),)
    plain = Manifest(
        kind=kind,
        blueprint=Blueprint("timm", "timm 1.0.31", model, {"in_chans": 1}, "layer2", side, "fx", (16, 16)),
        payload=Payload(Edge(f"sha256:{HEX[0]}", 16), f"tensors:sha256:{HEX[0]}", 1, 16),
        contract=Contract(ports, DATA, Protocol("batch", anchors)),
    )
    return attrs.evolve(plain, **changes)


def tagged(**tags: str) -> About:
    """Return a description for people, with tags."""
    return About(tags=tags)


def child_of(*digests: str) -> tuple[Parent, ...]:
    """Return parents that it was trained with."""
    return tuple(Parent("trained_with", digest) for digest in digests)


@attrs.frozen
class Hand:
    """Writes into a registry without asking anybody.

    Attributes:
        ticks: Seconds that are given to what changes, each once, so that no clock is too coarse to show a change.
    """

    root: Path
    ticks: Iterator[int] = attrs.field(factory=lambda: itertools.count(1_000_000_000))

    @classmethod
    def init(cls, root: Path) -> Hand:
        """Make an empty registry."""
        Store.init(root)
        return cls(root)

    def tick(self, *paths: Path) -> None:
        """Let the modification times of files or folders be new ones, long ago."""
        for path in paths:
            os.utime(path, (moment := next(self.ticks), moment))

    def put(self, data: bytes | Manifest) -> str:
        """Put a blob and return its digest."""
        raw = to_bytes(data) if isinstance(data, Manifest) else data
        digest = hashlib.sha256(raw).hexdigest()
        path = self.blob(digest)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)
        self.tick(path)
        return f"sha256:{digest}"

    def blob(self, digest: str) -> Path:
        """Return where a blob is."""
        name = digest.removeprefix("sha256:")
        return self.root / "blobs" / "sha256" / name[:2] / name

    def folder(self, name: str) -> Path:
        """Return the folder of a name."""
        return self.root / "refs" / name

    def version(self, name: str, version: str, content: str | bytes, kind: str = "@versions") -> Path:
        """Make or rewrite a version's file, in place if it is there; a digest gets its newline."""
        path = self.folder(name) / kind / version
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
        self.tick(path)
        return path

    def publish(self, name: str, version: str, content: str | bytes) -> Path:
        """Make a version as writers do: with a draft in ``tmp`` before and its removal after."""
        with self.writer(name):
            return self.version(name, version, content)

    def withdraw(self, name: str, version: str) -> None:
        """Make a tombstone as writers do."""
        with self.writer(name):
            self.version(
                name, version, b'{"reason":"wrong","time":"2026-01-01T00:00:00+00:00"}\n', "@tombstones"
            )

    def remove(self, name: str) -> None:
        """Remove a name with all that is below it."""
        if self.folder(name).is_dir():
            shutil.rmtree(self.folder(name))
            self.tick(self.folder(name).parent)

    @contextmanager
    def writer(self, name: str) -> Iterator[None]:
        """Leave the traces of a program that writes below a name."""
        draft = self.root / "tmp" / f"{os.getpid()}-{os.urandom(8).hex()}"
        draft.write_bytes(b"")
        yield
        self.settle(name)
        draft.unlink()
        self.tick(self.root / "tmp")

    def settle(self, name: str) -> None:
        """Let the times of a name's folders, and of those above, be new ones."""
        folder, refs = self.folder(name), self.root / "refs"
        above = [item for item in (folder, *folder.parents) if item == refs or refs in item.parents]
        self.tick(
            *(folder / kind for kind in ("@versions", "@tombstones") if (folder / kind).is_dir()), *above
        )
