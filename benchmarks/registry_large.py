"""Large registry, written as plain files: publishing one version after the other would take an hour."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import attrs
import registry_tables as bare
from contest import expect, say
from registry_settings import Settings

from compatkit.contracts.contract import Blueprint, Contract, Data, Port, Protocol, Statistical, Structural
from compatkit.contracts.manifest import Edge, Manifest, Payload, to_bytes
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.store import Store

EACH = 5
"""Versions of a name."""
LONG = "long/name"
"""Name with a tenth as many versions as all others together."""
COLORS = 500
"""Values of the searched tag: 200 of 100,000 versions share one."""
SETTLED = 2.5
"""Seconds until the modification times of files identify their contents."""
DAY = 24 * 3600


@attrs.frozen(eq=False)
class LargeRegistry:
    """Large registry, and bare tables of the same versions.

    Attributes:
        names: Sorted names.
        versions: Number of versions of all names.
        long: Number of versions of ``LONG``.
        dead: Number of unreferenced blobs.
    """

    store: Store
    tables: Path
    names: list[str]
    versions: int
    long: int
    dead: int

    @property
    def wanted(self) -> tuple[str, str]:
        """Return a name from the middle and a version of it."""
        return self.names[len(self.names) // 2], "1.2.0"


def fill(settings: Settings) -> LargeRegistry:
    """Write blobs and references; unreferenced blobs are old enough for garbage collection."""
    store, long = Store.init(settings.folder / "large"), settings.versions // 10
    names = [f"zone{number % 40}/net{number}.head" for number in range(settings.versions // EACH)]
    say(f"writing {settings.versions:,} versions of {len(names):,} names, and {long:,} of one name")
    template = loads(to_bytes(_manifest(store)), what="template")
    serial = 0
    for name in names:
        _write(store.root, template, name, EACH, serial)
        serial += EACH
    _write(store.root, template, LONG, long, None)
    past = time.time() - 2 * DAY
    for number in range(long):
        os.utime(_blob(store.root, b"dead %d" % number), (past, past))
    tables = settings.folder / "bare.sqlite"
    os.sync()
    time.sleep(SETTLED)
    expect("versions", bare.rebuild(store.root, tables), serial + long)
    return LargeRegistry(Store.open(store.root), tables, sorted([*names, LONG]), serial + long, long, long)


def write_versions(root: Path, versions: int) -> Store:
    """Write a sound registry of small manifests, of which one name has a tenth.

    Args:
        root: Folder of the registry, to be made.
        versions: Number of versions.
    """
    store, long = Store.init(root), versions // 10
    payload = store.put_state({}, parameters=1)
    template = loads(to_bytes(attrs.evolve(_manifest(store), payload=payload)), what="template")
    names = [f"zone{number % 40}/net{number}.head" for number in range((versions - long) // EACH)]
    for serial, name in enumerate(names):
        _write(root, template, name, EACH, EACH * serial)
    _write(root, template, LONG, long, None)
    return Store.open(root)


def _manifest(store: Store) -> Manifest:
    payload = store.put_blob(b"weights")
    features = Port("features", ("N", 64, "H", "W"), measured={"32x32": (16, 16)})
    contract = Contract(
        Structural((features,), (Port("logits", ("N", 10), layout="NC"),)),
        Data((32, 32), "RGB", (0.4, 0.4, 0.4), (0.2, 0.2, 0.2)),
        Protocol("batch", ()),
        Statistical(None, None),
    )
    blueprint = Blueprint("timm", "timm", "resnet20_cifar", {}, "layer2", "head", "fx", (32, 32))
    weights = Payload(Edge(payload.blob, payload.bytes), "tensors:sha256:" + "0" * 64, 1, 1)
    return Manifest(kind="head", blueprint=blueprint, payload=weights, contract=contract)


def _write(root: Path, template: dict[str, Any], name: str, versions: int, serial: int | None) -> None:
    """Write the versions of a name, with a color if ``serial`` is given."""
    folder = root / "refs" / name / "@versions"
    folder.mkdir(parents=True)
    for minor in range(versions):
        template["about"]["title"] = f"{name} 1.{minor}.0"
        template["about"]["tags"] = {"serial": str(minor)}
        if serial is not None:
            template["about"]["tags"] = {
                "color": str((serial + minor) % COLORS),
                "serial": str(serial + minor),
            }
        digest = _blob(root, dumps(template)).name
        _plain(folder / f"1.{minor}.0", f"sha256:{digest}\n".encode())


def _blob(root: Path, data: bytes) -> Path:
    name = hashlib.sha256(data).hexdigest()
    path = root / "blobs" / "sha256" / name[:2] / name
    path.parent.mkdir(exist_ok=True)
    _plain(path, data)
    return path


def _plain(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    os.write(descriptor, data)
    os.close(descriptor)
