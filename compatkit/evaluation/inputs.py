"""Read images given as files, folders, PIL images, arrays or tensors, one or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL.Image import Image
from torch import Tensor

from compatkit.data.bitdepth import MAX_16_BIT, ValueRange, to_8_bit
from compatkit.data.decoding import decode, to_rgb
from compatkit.data.imagefiles import read_file
from compatkit.data.lazy import LazyImages, pixels_of
from compatkit.data.split import Split
from compatkit.data.unlabeled import find_images
from compatkit.errors import DataError

if TYPE_CHECKING:
    from compatkit.data.transforms import Images

    ImageInput = str | os.PathLike[str] | Image | np.ndarray[Any, Any] | Tensor
    ImageInputs = ImageInput | Split | Iterable[ImageInput]

EXPECTED = (
    "a file or a folder of images, a PIL image, a numpy array (height, width), (height, width, channels) or (n, "
    "height, width, channels), a tensor (channels, height, width) or (n, channels, height, width), or a list of these"
)
CHANNELS = (1, 3)
SCALES = {"f": ValueRange(0.0, 1.0), "u": ValueRange(0, MAX_16_BIT)}
"""Value ranges of float arrays and of 16-bit integers, as in files."""
Unread = tuple[str, "Callable[[], Image | Images]"]
"""The file of an image, empty where it has none, and what reads it: an RGB image, or ``(n, height, width, 1 or 3)``."""


def arrays_of(images: ImageInputs) -> Iterator[Images]:
    """Yield images as uint8 arrays ``(n, height, width, 1 or 3)``, in order; sizes may differ between arrays.

    Args:
        images: As for ``unread``.

    Raises:
        DataError: There are none, or an input has another form.
        DamagedImage: An image cannot be decoded.
        EnvironmentFailure: A file cannot be read.
    """
    for _, read in unread(images):
        image = read()
        yield pixels_of(image)[None] if isinstance(image, Image) else image


def unread(source: ImageInputs) -> list[Unread]:
    """Return what reads each image, or each array of images, in order; nothing is decoded before it is called.

    Args:
        source: ``EXPECTED``, or a ``Split``. Arrays and tensors hold 0 to 255 as uint8, 0 to 65,535 as uint16, or
            0 to 1 as floats.

    Returns:
        For each the name of its file, and a function that raises as ``arrays_of``.

    Raises:
        DataError: There are no images, or an input has another form.
        EnvironmentFailure: A folder cannot be read.
    """
    images = list(_each(source))
    if not images:
        raise DataError(f"There are no images: expected {EXPECTED}.", subject=source)
    return images


def _each(source: Any) -> Iterator[Unread]:
    if isinstance(source, Split):
        if isinstance(source.images, LazyImages):
            yield from _files(source.images)
        else:
            yield "", partial(np.asarray, source.images)
    elif isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        if not path.exists():
            raise DataError(f"There is no file or folder {path}.", subject=path)
        if path.is_dir():
            yield from _files(find_images(path.resolve()))
        else:
            yield str(path), lambda: decode(read_file(path), str(path))
    elif isinstance(source, Tensor | np.ndarray):
        yield "", lambda: _array(source)
    elif isinstance(source, Image):
        yield "", lambda: to_rgb(source, "the PIL image")
    elif isinstance(source, Iterable) and not isinstance(source, bytes | dict):
        for item in source:
            yield from _each(item)
    else:
        raise DataError(f"Expected {EXPECTED}; got {type(source).__name__}.", subject=source)


def _files(images: LazyImages) -> Iterator[Unread]:
    for position in range(len(images)):
        yield images.name_in("", position), partial(images.image, position)


def _array(array: Any) -> Images:
    """Return an array or a tensor as uint8 ``(n, height, width, channels)``."""
    tensor = isinstance(array, Tensor)
    shape = tuple(array.shape)
    values = _numpy(array) if tensor else array
    if tensor and values.ndim in (3, 4):
        values = np.moveaxis(values, -3, -1)
    flat = values.ndim == 2 and not tensor
    if 0 in shape or not (flat or (values.ndim in (3, 4) and values.shape[-1] in CHANNELS)):
        raise DataError(
            f"A{' tensor' if tensor else 'n array'} of shape {shape} is not an image or a batch: expected {EXPECTED}, "
            f"with 1 or 3 channels. For gray images use images[{':, None' if tensor else '..., None'}].",
            subject=shape,
        )
    values = values[..., None] if values.ndim == 2 else values
    values = values[None] if values.ndim == 3 else values
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    scale = SCALES.get(values.dtype.kind) if values.dtype.kind == "f" or values.dtype.itemsize == 2 else None
    try:
        if scale is None:
            raise ValueError(f"values of type {values.dtype} have no scale")
        return np.stack([to_8_bit(image, scale) for image in values])
    except ValueError as error:
        raise DataError(
            f"Images need 0 to 255 as uint8, 0 to {MAX_16_BIT:,} as uint16, or 0 to 1 as floats; got {values.dtype} "
            f"from {values.min()} to {values.max()}: {error}. Call the model itself for normalized images: "
            "model(images).",
            subject=shape,
        ) from error


def _numpy(values: Tensor) -> np.ndarray[Any, Any]:
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()  # numpy has no bfloat16
