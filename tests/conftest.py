"""Fixtures that many tests share: real data packs where they are present, small data where they are not."""

from __future__ import annotations

import os

# One thread: small networks gain nothing from more, and two would fight over a busy machine's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before timm is imported: no test may wait for a network

from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def packs() -> Path:
    """Folder of real data packs; tests that need it are skipped, and say so, where there is none."""
    for folder in (os.environ.get("COMPATKIT_DATA"), REPOSITORY.parent / "shared" / "data"):
        if folder and (Path(folder) / "mnist.npz").exists():
            return Path(folder)
    pytest.skip("no data packs: set COMPATKIT_DATA to a folder that holds mnist.npz and usps.npz")


@pytest.fixture(autouse=True)
def no_outside_influence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep the user's registry, data and plugin settings out of the tests, and caches inside tmp_path."""
    for name in ("COMPATKIT_REGISTRY", "COMPATKIT_DATA", "COMPATKIT_PLUGINS", "COMPATKIT_DISABLE_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
