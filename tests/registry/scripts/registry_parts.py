"""Payloads, manifests and looks at a whole registry for the scripts, which run alone and import no torch."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from compatkit.contracts.contract import Blueprint, Contract, Data, Port, Protocol, Structural
from compatkit.contracts.manifest import Manifest, Payload, edges
from compatkit.foundation.codec import loads
from compatkit.registry.layout_scan import Blob, scan
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import tensor_digest

CONDITIONS = {"metric": "accuracy"}


def blobs_in(store: Store) -> dict[str, int]:
    """Return the sizes of all blobs that are in their place, by digest."""
    result = (entry for entry in scan(store.root, "blobs") if isinstance(entry, Blob))
    return {match.digest: os.stat(store.root / match.path).st_size for match in result}


def put(store: Store, value: int, size: int = 1) -> Payload:
    """Put a tensor file of ``size`` numbers, each ``value``; large ones come in pieces."""
    entry = {"dtype": "I32", "shape": [size], "data_offsets": [0, 4 * size]}
    header = json.dumps({"weight": entry}).encode()
    head, body = len(header).to_bytes(8, "little") + header, value.to_bytes(4, "little") * size
    edge = store.objects.put(head, body[: 2 * size], body[2 * size :])
    return Payload(edge, tensor_digest(head + body), 1, size)


def manifest_for(payload: Payload, **changes: Any) -> Manifest:
    """Return a small manifest."""
    ports = Structural((Port("image", ("N", 1, "H", "W")),), (Port("features", ("N", 8), layout="NC"),))
    fields: dict[str, Any] = {
        "kind": "extractor",
        "blueprint": Blueprint("timm", "timm 1", "net", {}, "layer1", "extractor", "fx", (32, 32)),
        "payload": payload,
        "contract": Contract(ports, Data((32, 32), "L", (0.5,), (0.5,)), Protocol("none")),
    }
    return Manifest(**fields | changes)


def check(condition: bool, what: str) -> None:
    """End the script if something is not as it must be."""
    if not condition:
        raise SystemExit(f"failed: {what}")


def whole(store: Store) -> list[str]:
    """Read everything that can be named, and what that refers to, verified; return the versions in use."""
    return read_all(store)[0]


def read_all(store: Store) -> tuple[list[str], set[str]]:
    """Return what ``whole`` does, and the digests of everything that was read."""
    result: list[str] = []
    ahead: list[str] = []
    spared: set[str] = set()
    for name, version in store.references.each():
        digest = store.references.digest(name, version)
        check(digest is not None, f"{name}@{version} has no digest")
        ahead.append(str(digest))
        if store.tombstone(name, version) is None:
            result.append(f"{name}@{version}")
        else:
            spared.add(store.manifest(str(digest)).payload.file.blob)  # its weights may be gone
    for name in store.names():
        for alias, version in store.aliases(name).items():
            check(version in map(str, store.references.versions(name)), f"{name}:{alias} points at nothing")
            store.alias_log(name, alias)
    for pointer in (store.root / "evidence").glob("*/*/*/*"):
        ahead.append(f"sha256:{pointer.name}")
    seen: set[str] = set()
    while ahead:
        digest = ahead.pop()
        if digest not in seen and not (digest in spared and store.objects.size(digest) is None):
            seen.add(digest)
            data = store.read_blob(digest, verify="always")
            if data.startswith(b"{"):
                ahead.extend(edges(loads(data, what=digest)))
    check(
        seen <= set(blobs_in(store)),
        "a blob lies in trash though it is referred to",
    )
    return result, seen


def sweep(root: Path) -> Store:
    """Delete everything that nothing refers to."""
    store = Store.open(root)
    plan(store, grace=timedelta(0), alone=True).apply()
    return store


def collected(root: Path) -> list[str]:
    """Delete everything that nothing refers to, and see that nothing else went; return the versions, as ``whole``."""
    store = sweep(root)
    after = plan(store, grace=timedelta(0), alone=True)
    check(after.is_empty, f"one collection left something: {after}")
    result, seen = read_all(store)
    check(
        set(blobs_in(store)) == seen,
        "something unused is left, or something is missing",
    )
    left = [path for folder in ("tmp", "trash") for path in (root / folder).iterdir()]
    check(not left, f"left in tmp or trash: {[(str(name), name.lstat()) for name in left]}")
    return result


def snapshot(root: Path) -> dict[str, int]:
    """Return every file of a registry with its size; folders that became empty may stay.

    Left out are damaged files that were moved away; the pointers of aliases: the log decides, they may be behind; and
    signatures: they state when they were made, and one that was made before an interruption stays.
    """
    return {
        os.path.relpath(f"{folder}/{name}", root): os.stat(f"{folder}/{name}").st_size
        for folder, _, files in os.walk(root)
        if not folder.endswith(("/quarantine", "/@aliases")) and "/signatures/" not in folder
        for name in files
    }


def aliases(root: Path) -> dict[str, dict[str, str]]:
    """Return where every alias points."""
    store = Store.open(root)
    return {name: store.aliases(name) for name in store.names()}
