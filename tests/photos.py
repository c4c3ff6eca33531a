"""Small image files in folders, for tests of images that are read when they are asked for."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Return an RGB image of noise over a slope, so that resizes differ everywhere."""
    draw = np.random.default_rng(seed)
    slope = np.linspace(0, 155, height * width * 3).reshape(height, width, 3)
    return Image.fromarray((slope + draw.integers(0, 100, (height, width, 3))).astype(np.uint8))


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """Return an image's file."""
    held = io.BytesIO()
    image.save(held, format, **options)
    return held.getvalue()


def class_folder(
    root: Path, counts: dict[str, int], *, size: tuple[int, int] | None = None, seed: int = 0
) -> Path:
    """Write PNG files into class folders; sizes differ from image to image unless one is given."""
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            shape = size or (9 + place, 13 - place % 5)
            image = photo(*shape, seed=seed + 1000 * number + place)
            (root / name / f"{place:03}.png").write_bytes(encoded(image))
    return root
