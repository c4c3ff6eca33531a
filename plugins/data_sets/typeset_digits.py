"""Typeset digits, rendered in code: a second domain for handwritten ones, with the same ten classes.

Each image is a digit of one of several TrueType fonts that come with matplotlib, at its own size, width,
place, slant, turn and contrast, with noise. It is drawn at several times the size and averaged down.
"""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from compatkit import DataSet, hookimpl
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1
Images = NDArray[np.uint8]
Floats = NDArray[np.float64]
FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
)
NAME = "typeset-digits"
OVERSAMPLING = 4
_GLYPH = 96
"""Height of a glyph's bitmap in pixels, from which all sizes are drawn."""


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``typeset-digits``."""
    register(NAME, lambda root=None, download=False: typeset_digits())


def typeset_digits(train: int = 2000, test: int = 500, *, size: int = 16, seed: int = 0) -> DataSet:
    """Return typeset digits, white on black.

    Args:
        train: Number of training images; the classes take turns.
        test: Number of test images.
        size: Height and width in pixels, 6 to 128.
        seed: Equal seeds give equal images under the same versions of Pillow and matplotlib.

    Raises:
        DataError: A count or the size cannot be used.
        EnvironmentFailure: matplotlib's fonts are missing.
    """
    Number(least=6, most=128, whole=True).check(NAME, DataError, size=size)
    Number(least=10, whole=True).check(NAME, DataError, train=train, test=test)
    glyphs = _glyphs()
    splits = [_render(glyphs, count, size, (seed, part)) for part, count in enumerate((train, test))]
    return DataSet.of(NAME, splits[0], splits[1], [str(digit) for digit in range(10)])


def _glyphs() -> list[list[Image.Image]]:
    """Return a tight gray bitmap, ``_GLYPH`` pixels high, of each digit in each font."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return [[_glyph(folder / f"{font}.ttf", str(digit)) for digit in range(10)] for font in FONTS]


def _glyph(file: Path, text: str) -> Image.Image:
    try:
        # By its bytes: for a path that does not exist Pillow would take a font of that name from the system.
        font = ImageFont.truetype(BytesIO(file.read_bytes()), _GLYPH, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise EnvironmentFailure(
            f"The font {file} cannot be read: {error}. It comes with matplotlib; install matplotlib anew.",
            subject=file,
        ) from error
    canvas = Image.new("L", (3 * _GLYPH, 3 * _GLYPH))
    ImageDraw.Draw(canvas).text((_GLYPH, _GLYPH), text, font=font, fill=255)
    ink = canvas.crop(canvas.getbbox())
    return ink.resize((max(1, round(ink.width * _GLYPH / ink.height)), _GLYPH), Image.Resampling.BILINEAR)


def _render(
    glyphs: list[list[Image.Image]], count: int, size: int, seed: tuple[int, int]
) -> tuple[Images, NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.arange(count) % 10)
    fonts = draw.integers(len(glyphs), size=count)
    fine = size * OVERSAMPLING
    maps = _maps(draw, glyphs, fonts, labels, fine)
    drawn = np.empty((count, fine, fine), dtype=np.uint8)
    for index, (font, label, coefficients) in enumerate(zip(fonts, labels, maps, strict=True)):
        turned = glyphs[font][label].transform(
            (fine, fine), Image.Transform.AFFINE, tuple(coefficients), Image.Resampling.BILINEAR
        )
        drawn[index] = np.asarray(turned)
    coarse = drawn.reshape(count, size, OVERSAMPLING, size, OVERSAMPLING).mean(axis=(2, 4), dtype=np.float32)
    contrast = draw.uniform(0.75, 1.0, (count, 1, 1)).astype(np.float32)
    noise = draw.normal(0.0, 255 * 0.04, coarse.shape).astype(np.float32)
    pixels = np.clip(coarse * contrast + noise, 0, 255) + np.float32(0.5)
    return pixels.astype(np.uint8)[..., None], labels


def _maps(
    draw: np.random.Generator,
    glyphs: list[list[Image.Image]],
    fonts: NDArray[np.int64],
    labels: NDArray[np.int64],
    fine: int,
) -> Floats:
    """Return for each image the six numbers that take a place in the image to one in the glyph, in pixels."""
    count = len(labels)
    height = draw.uniform(0.75, 1.0, count) * fine
    stretch = draw.uniform(0.85, 1.2, count)
    slant, turn = draw.uniform(-0.15, 0.3, count), draw.normal(0.0, math.radians(4), count)
    offset = draw.uniform(-0.06, 0.06, (2, count)) * fine
    width = np.array([glyphs[font][label].width for font, label in zip(fonts, labels, strict=True)])
    scale = height / _GLYPH
    # A narrow frame must hold the widest digit: stretch at most to nine tenths of it.
    stretch = np.minimum(stretch, 0.9 * fine / (width * scale))
    zero = np.zeros(count)
    rotated = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    sheared = np.array([[scale * stretch, -slant * scale], [zero, scale]])
    forward = np.einsum("ijn,jkn->nik", rotated, sheared)
    back = np.linalg.inv(forward)
    middle = np.stack([width / 2, np.full(count, _GLYPH / 2)], axis=1)
    offset = middle - np.einsum("nij,nj->ni", back, fine / 2 + offset.T)
    return np.concatenate([back[:, 0], offset[:, :1], back[:, 1], offset[:, 1:]], axis=1)
