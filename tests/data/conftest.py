"""Small data sets and pack files for the tests of data."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compatkit.data.dataset import Split

CLASSES = ("ant", "bee", "cat")


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Return uint8 noise."""
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is remembered of image files in the test's own folder."""
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "remembered"))


@pytest.fixture
def make_split() -> Callable[..., Split]:
    """Make a split of noise with the labels given."""

    def make(
        labels: list[int], *, size: tuple[int, int] = (4, 5), channels: int = 1, name: str = "t/train"
    ) -> Split:
        return Split(noise(len(labels), *size, channels), np.array(labels), CLASSES, name)

    return make


@pytest.fixture
def arrays() -> dict[str, Any]:
    """Return the arrays of a sound pack: 9 + 6 RGB images of 4 x 5 pixels in 3 classes."""
    return {
        "x_train": noise(9, 4, 5, 3),
        "y_train": np.arange(9, dtype=np.uint8) % 3,
        "x_test": noise(6, 4, 5, 3, seed=1),
        "y_test": np.arange(6, dtype=np.uint8) % 3,
        "classes": np.array(CLASSES),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write arrays as a pack and return its path."""

    def save(content: dict[str, Any], name: str = "insects.npz") -> Path:
        path = tmp_path / name
        np.savez_compressed(path, **content)
        return path

    return save


def webp(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return images as lossless WebP files one after another, and their lengths."""
    files = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "WEBP", lossless=True)
        files.append(buffer.getvalue())
    return np.frombuffer(b"".join(files), np.uint8), np.array([len(file) for file in files], np.uint16)


@pytest.fixture
def webp_arrays(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the same pack with WebP files in place of the images."""
    packed = {key: value for key, value in arrays.items() if not key.startswith("x_")}
    for part in ("train", "test"):
        packed[f"webp_{part}"], packed[f"len_{part}"] = webp(arrays[f"x_{part}"])
    return packed
