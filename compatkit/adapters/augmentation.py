"""Augmentation of training images: presets, timm's ``create_transform``, or any transform of torchvision.

A transform takes a Pillow image and returns one of the required size. Its random numbers come from the global
generators of Python, numpy and torch, which are seeded for each image.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ImageOps
from PIL.Image import Image
from torch import Tensor

from compatkit.adapters.pixel_crop import PixelCrop
from compatkit.adapters.pixel_jitter import PixelJitter
from compatkit.contracts.contract import Data
from compatkit.errors import DataError, UsageError, suggest, type_of

MOVING: Mapping[str, tuple[str, ...]] = {"none": (), "cifar": ("crop", "flip")}
"""Presets that only move pixels."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "imagenet": {},
    "imagenet-strong": {"auto_augment": "rand-m9-mstd0.5-mmax9-inc1", "re_prob": 0.25, "re_mode": "pixel"},
}
"""Arguments of timm's ``create_transform`` by preset. ``mmax9`` prevents ``posterize`` to 0 bits, a black image."""
FROM_TASK = (
    *("input_size", "is_training", "use_prefetcher", "normalize", "mean", "std"),
    *("separate", "naflex", "tf_preprocessing"),
)
"""Arguments of ``create_transform`` that follow from the task."""
ERASING = ("re_prob", "re_mode", "re_count", "re_num_splits")
PADDING = 4
"""Pixels of the padding of ``cifar``'s random crop."""
Transform = Callable[[Any], Any]


@attrs.frozen(eq=False)
class ImageAugmentation:
    """Augmentation of each training image.

    Attributes:
        random: Transform of a Pillow image of any size, or of the final size if ``fitted``.
        fitted: Whether images are first resized and cropped as for evaluation.
        erasing: Random erasing of normalized images ``(n, channels, height, width)``, or None.
        description: For messages.
        of_pixels: The same transform of uint8 ``(height, width, channels)``, faster and rounded otherwise
            (``PixelCrop``, ``PixelJitter``); None if there is none.
        jitters_by_matrix: Whether ``of_pixels`` jitters colors by ``PixelJitter``.
    """

    random: Transform | None
    fitted: bool
    erasing: Transform | None
    description: str
    of_pixels: Transform | None = None
    jitters_by_matrix: bool = False

    def __call__(self, image: Image | NDArray[np.uint8], shape: tuple[int, ...], name: str) -> Tensor:
        """Return an image as uint8 ``(height, width, channels)``.

        Args:
            image: Pillow image; or pixels, if there is ``of_pixels``.
            shape: Height, width and channels of the result.
            name: Name of the image, for messages.

        Raises:
            DataError: A transform fails, or does not return an image of ``shape``.
        """
        try:
            transform = self.random if isinstance(image, Image) else self.of_pixels
            result = image if transform is None else transform(image)
        except Exception as error:  # foreign code may raise anything
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise DataError(
                f"The augmentation {self.description} failed on {name}: {type(error).__name__}: {error} (in "
                f"{where.name}, {Path(where.filename).name} line {where.lineno}). A retry fails too, as random numbers "
                "depend only on seed, epoch and image. Change the task's augment and resume with "
                "Trainer(new_augment=True), or compatkit train RECIPE --out RUN --new-augment.",
                subject=name,
            ) from error
        pixels = _pixels(result)
        if pixels is None or tuple(pixels.shape) != shape:
            actual = type_of(result) if pixels is None else f"the shape {tuple(pixels.shape)}"
            raise DataError(
                f"The augmentation {self.description} returned {actual} for {name}; expected a Pillow image of "
                f"{shape[1]} x {shape[0]} pixels with {shape[2]} channels, or a uint8 tensor, channels first. End it "
                "with a crop or resize; the trainer scales and normalizes.",
                subject=name,
            )
        return pixels


def image_augmentation(
    augment: tuple[str, ...] | Mapping[str, Any] | Transform, data: Data
) -> ImageAugmentation:
    """Return the augmentation of a task.

    Args:
        augment: Names (``"crop"``, ``"flip"``, or a preset), arguments of ``create_transform``, or a transform.
        data: Size, channels and interpolation of the task.

    Raises:
        UsageError: An argument is not one of ``create_transform``, or follows from the task.
    """
    if callable(augment):
        return ImageAugmentation(augment, False, None, f"{type(augment).__name__} of the task")
    if isinstance(augment, Mapping):
        words = ", ".join(f"{name}={value!r}" for name, value in augment.items())
        return _of_timm(augment, data, f"timm's create_transform({words})")
    if augment and augment[0] in PRESETS:
        return _of_timm(PRESETS[augment[0]], data, augment[0])
    from torchvision.transforms import v2

    steps: list[Transform] = []
    if "crop" in augment:
        steps.append(v2.RandomCrop(data.size, padding=PADDING))
    if "flip" in augment:
        steps.append(v2.RandomHorizontalFlip())
    return ImageAugmentation(v2.Compose(steps) if steps else None, True, None, ", ".join(augment) or "none")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the names of arguments of timm's ``create_transform``.

    Raises:
        UsageError: One is unknown, or follows from the task.
    """
    from timm.data.transforms_factory import create_transform

    known = [word for word in inspect.signature(create_transform).parameters if word not in FROM_TASK]
    for name in arguments:
        if name not in known:
            why = (
                "follows from the task" if name in FROM_TASK else "is no argument of timm's create_transform"
            )
            hint = suggest(name, known)
            raise UsageError(
                f"Task.augment: {name!r} {why}.{hint} Known are {', '.join(known)}.", subject=name
            )


def _of_timm(arguments: Mapping[str, Any], data: Data, description: str) -> ImageAugmentation:
    from timm.data.auto_augment import NAME_TO_OP, posterize
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import MaybePILToTensor, RandomResizedCropAndInterpolation
    from timm.data.transforms_factory import create_transform
    from torchvision.transforms import ColorJitter, Compose

    check_arguments(arguments)
    erasing = {name: value for name, value in arguments.items() if name in ERASING}
    rest = {name: value for name, value in arguments.items() if name not in ERASING}
    fill = {"mean": data.mean} if len(data.mean) == 1 else {}  # a gray image cannot be filled with a color
    settings = {"interpolation": data.interpolation, **fill, **rest}
    black = {name: _posterize for name, operation in NAME_TO_OP.items() if operation is posterize}
    try:
        with patch.dict(NAME_TO_OP, black):
            transform: Any = create_transform(data.size, is_training=True, use_prefetcher=True, **settings)
            if isinstance(transform.transforms[-1], MaybePILToTensor):
                del transform.transforms[-1]  # ``_pixels`` gives bytes in the order in which they are stacked
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"timm.data.create_transform rejects {dict(rest)}: {error}.", subject=rest
        ) from error
    erase = None
    if probability := erasing.get("re_prob", 0.0):
        erase = RandomErasing(
            probability,
            mode=erasing.get("re_mode", "const"),
            max_count=erasing.get("re_count", 1),
            device="cpu",
        )
    first = transform.transforms[0]
    crop = PixelCrop.of(first) if type(first) is RandomResizedCropAndInterpolation else None
    if crop is None:
        return ImageAugmentation(transform, False, erase, description)
    steps = [
        PixelJitter(step) if type(step) is ColorJitter and step.hue is None else step
        for step in transform.transforms[1:]
    ]
    jitters = any(isinstance(step, PixelJitter) for step in steps)
    return ImageAugmentation(transform, False, erase, description, Compose([crop, *steps]), jitters)


def _posterize(image: Image, bits_to_keep: int, **_: Any) -> Image:
    """Keep the most significant bits of each channel, as timm and TensorFlow do; 0 bits make a black image.

    Since Pillow 13 its own function requires at least 1 bit.
    """
    if bits_to_keep <= 0:
        return image.point(lambda _: 0)
    return image if bits_to_keep >= 8 else ImageOps.posterize(image, bits_to_keep)


def _pixels(image: Any) -> Tensor | None:
    """Return an image as uint8 ``(height, width, channels)``; None if it is not an image."""
    if isinstance(image, Image):
        pixels = torch.from_numpy(np.array(image))
        return pixels[..., None] if pixels.ndim == 2 else pixels
    if isinstance(image, np.ndarray):  # returned by timm's transforms
        image = torch.from_numpy(np.array(image, order="C"))
    if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.ndim != 3:
        return None
    return image.as_subclass(Tensor).permute(1, 2, 0)
