"""How the time of a verification grows with the versions of a registry, one name of which has a tenth."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from handmade import part

from compatkit.contracts.manifest import to_bytes
from compatkit.foundation.codec import digest, dumps, loads
from compatkit.registry.maintenance.check import examine
from compatkit.registry.refs import version_line
from compatkit.registry.store import Store

EACH = 5


def filled(root: Path, versions: int) -> Store:
    """Make a registry whose names have five versions, but for one that has a tenth of all."""
    store = Store.init(root)
    payload = store.put_state({}, parameters=0)
    template = loads(to_bytes(part("head", payload=payload)), what="template")
    long = versions // 10
    names = {f"zone{number % 40}/net{number}": EACH for number in range((versions - long) // EACH)}
    for name, count in {**names, "long/name": long}.items():
        folder = root / "refs" / name / "@versions"
        folder.mkdir(parents=True)
        for minor in range(count):
            template["about"]["title"] = f"{name} {minor}"
            blob = _blob(store, dumps(template))
            (folder / f"1.{minor}.0").write_bytes(version_line(f"{name}@1.{minor}.0", blob))
    return Store.open(root)


def _blob(store: Store, data: bytes) -> str:
    """Write a blob without waiting for the disk."""
    name = digest(data)
    path = store.objects.path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o444)
    return name


def seconds(store: Store, *, deep: bool = True) -> float:
    """Return the processor time of a verification that finds nothing wrong."""
    begun = time.process_time()
    report = examine(store, deep=deep)
    taken = time.process_time() - begun
    assert report.sound and report.versions == report.manifests
    return taken


def one_read(root: Path) -> float:
    """Return the processor time of reading all files once."""
    begun = time.process_time()
    for folder, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                file.read()
    return time.process_time() - begun


def test_a_verification_of_four_times_the_versions_takes_about_four_times_as_long(tmp_path: Path) -> None:
    small, large = filled(tmp_path / "small", 100), filled(tmp_path / "large", 400)
    taken = [min(seconds(store) for _ in range(2)) for store in (small, large)]
    assert taken[1] < 8 * taken[0], taken


@pytest.mark.slow
def test_verification_of_large_registries_grows_linearly(tmp_path: Path) -> None:
    sizes = [5_000, 50_000, 100_000]
    lines, taken = [], {}
    for size in sizes:
        store = filled(tmp_path / str(size), size)
        read, full, quick = one_read(store.root), seconds(store), seconds(store, deep=False)
        taken[size] = full
        lines.append(
            f"{size:>7,} versions: one read {read:.2f} s, verify {full:.2f} s, --quick {quick:.2f} s"
        )
    print("\n".join(lines))
    assert taken[100_000] < 30 * taken[5_000], lines
