"""Images as people have them, one or many: files, PIL images, arrays and tensors become uint8 arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL.Image import Image
from torch import Tensor

from compatkit.data.split import Split
from compatkit.data.unlabelled import files_of, pixels_of, read_image
from compatkit.errors import DataError

if TYPE_CHECKING:
    from compatkit.data.transforms import Images

    One = str | os.PathLike[str] | Image | np.ndarray[Any, Any] | Tensor
    Given = One | Split | Iterable[One]

EXPECTED = (
    "a file or a folder of images, a PIL image, a numpy array (height, width), (height, width, channels) or "
    "(n, height, width, channels), a tensor (channels, height, width) or (n, channels, height, width), or a list of "
    "these"
)
CHANNELS = (1, 3)


def arrays_of(given: Given) -> list[Images]:
    """Return images as uint8 arrays ``(n, height, width, 1 or 3)``, in their order; sizes may differ between arrays.

    Args:
        given: ``EXPECTED``, or a ``Split``. Arrays and tensors hold 0 to 255 as uint8, or 0 to 1 as floats.

    Raises:
        DataError: There are none, or one is something else; a file is no readable image.
        EnvironmentFailure: The system does not let a file be read.
    """
    found = list(_arrays(given))
    if not found:
        raise DataError(f"There are no images: expected {EXPECTED}.", subject=given)
    return found


def _arrays(given: Any) -> Iterator[Images]:
    if isinstance(given, Split):
        yield given.images
    elif isinstance(given, str | os.PathLike):
        place = Path(given).expanduser()
        for file in files_of(place) if place.is_dir() else [place]:
            yield read_image(file)[None]
    elif isinstance(given, Tensor | np.ndarray):
        yield _array(given)
    elif isinstance(given, Image):
        yield pixels_of(given, "the PIL image")[None]
    elif isinstance(given, Iterable) and not isinstance(given, bytes | dict):
        for one in given:
            yield from _arrays(one)
    else:
        raise DataError(f"Expected {EXPECTED}; got {type(given).__name__}.", subject=given)


def _array(given: Any) -> Images:
    """Return an array or a tensor as uint8 ``(n, height, width, channels)``."""
    tensor = isinstance(given, Tensor)
    shape = tuple(given.shape)
    values = _numpy(given) if tensor else given
    if tensor and values.ndim in (3, 4):
        values = np.moveaxis(values, -3, -1)
    flat = values.ndim == 2 and not tensor
    if 0 in shape or not (flat or (values.ndim in (3, 4) and values.shape[-1] in CHANNELS)):
        raise DataError(
            f"A{' tensor' if tensor else 'n array'} of shape {shape} is no image and no batch of images: expected "
            f"{EXPECTED}; 1 or 3 channels. Grey ones without it: images[{':, None' if tensor else '..., None'}].",
            subject=shape,
        )
    values = values[..., None] if values.ndim == 2 else values
    values = values[None] if values.ndim == 3 else values
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype.kind != "f" or not (values.min() >= 0 and values.max() <= 1):
        raise DataError(
            f"Images hold 0 to 255 as uint8, or 0 to 1 as floats; got {values.dtype} from {values.min()} to "
            f"{values.max()}. What is normalised already goes into the model itself: model(images).",
            subject=shape,
        )
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8)


def _numpy(values: Tensor) -> np.ndarray[Any, Any]:
    values = values.detach().cpu()
    return (values.float() if values.is_floating_point() else values).numpy()  # numpy has no bfloat16
