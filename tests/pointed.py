"""Results as they lie on disk, for tests that keep bytes that are no documents."""

from __future__ import annotations

from pathlib import Path

from compatkit.registry.store import Store


def pointers(store: Store, extractor: str, head: str) -> list[Path]:
    """Return the files that point at the results of two functions, oldest first."""
    folder = store.root / "evidence" / extractor.rpartition(":")[2] / head.rpartition(":")[2]
    result = (path for path in folder.glob("*/*") if len(path.name) == 64 and path.is_file())
    return sorted(result, key=lambda path: (path.stat().st_mtime_ns, path.name))


def results(store: Store, extractor: str, head: str) -> list[bytes]:
    """Return the results themselves, verified."""
    return [store.read_blob(f"sha256:{path.name}") for path in pointers(store, extractor, head)]
