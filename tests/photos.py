"""Small image files in folders, for tests of images that are read when they are asked for."""

from __future__ import annotations

import io
import struct
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
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def raw_tiff(values: np.ndarray, photometric: int = 1, kind: int = 1, **tags: int | float) -> bytes:
    """Return an uncompressed TIFF of values ``(height, width)`` or ``(height, width, channels)`` as they stand.

    Args:
        values: Of any type of numbers.
        photometric: Whether 0 is white (0), black (1), the values are colors (2), inks (5)...
        kind: Whether values are unsigned (1), signed (2) or floating-point ones (3).
        tags: Further ones by number, such as ``t281=4095``; floats are written as such.
    """
    shape = (*values.shape, 1)[:3]
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    bits, count = values.dtype.itemsize * 8, shape[2]
    fields: list[tuple[int, int, list[int | float]]] = [
        (256, 4, [shape[1]]),
        (257, 4, [shape[0]]),
        (258, 3, [bits] * count),
        (259, 3, [1]),
        (262, 3, [photometric]),
        (273, 4, [8]),
        (277, 3, [count]),
        (278, 4, [shape[0]]),
        (279, 4, [len(data)]),
        (339, 3, [kind] * count),
        *((int(name[1:]), 11 if isinstance(value, float) else 4, [value]) for name, value in tags.items()),
    ]
    where, rows, rest = 8 + len(data) + 2 + 12 * len(fields) + 4, b"", b""
    for number, type_, content in sorted(fields):
        packed = struct.pack(
            f"<{len(content)}{ {3: 'H', 4: 'I', 11: 'f'}[type_] }".replace(" ", ""), *content
        )
        if len(packed) > 4:
            rest, packed = rest + packed, struct.pack("<I", where + len(rest))
        rows += struct.pack("<HHI", number, type_, len(content)) + packed.ljust(4, b"\0")
    return (
        b"II*\0"
        + struct.pack("<I", 8 + len(data))
        + data
        + struct.pack("<H", len(fields))
        + rows
        + bytes(4)
        + rest
    )


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
