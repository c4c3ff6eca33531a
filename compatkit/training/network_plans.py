"""Plan the network of a task: which model with which arguments, where it is cut, for which images."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import attrs

from compatkit.adapters.blueprints import own_width_of
from compatkit.adapters.builders import BUILDERS
from compatkit.adapters.cutting.planning import CutPlan, plan
from compatkit.adapters.modelconfig import InputSpec
from compatkit.adapters.weights import locate
from compatkit.contracts.contract import Data
from compatkit.contracts.labels import label
from compatkit.errors import CutError, UsageError
from compatkit.evaluation.preprocessing import fitting
from compatkit.training.task import Rest, Task


def with_weights(task: Task) -> tuple[Task, InputSpec | None]:
    """Return a task whose weights are a file, built for the images that its folder states, and these images.

    Args:
        task: As the user made it.

    Raises:
        UsageError: The weights are of another architecture, or of images that no contract describes.
        CompatkitError: See ``locate``.
    """
    if not isinstance(task.weights, str | PathLike) or task.weights == "pretrained":
        return task, None
    located = locate(Path(task.weights) if isinstance(task.weights, PathLike) else task.weights)
    images, wanted = located.images, task.model.partition(".")[0]
    if images is None:
        return attrs.evolve(task, weights=located.path), None
    if located.architecture != wanted or not BUILDERS[task.builder].like_timm:
        raise UsageError(
            f"Task {task.name!r} is to be a {wanted} of {task.builder}, and its weights {task.weights} are of a "
            f"{located.architecture} of timm, as their config.json says. Name that model, or other weights.",
            subject=task.name,
        )
    if images.crop_mode not in ("center", "squash"):
        raise UsageError(
            f"Task {task.name!r}: config.json of {task.weights} crops images by {images.crop_mode!r}; a contract "
            "describes 'center' and 'squash'. Write one of them there.",
            subject=task.name,
        )
    stated = task.normalize or {"mean": images.mean, "std": images.std}
    kwargs, size = {**located.kwargs, **task.kwargs}, task.size or images.size
    return attrs.evolve(task, weights=located.path, kwargs=kwargs, size=size, normalize=stated), images


def plan_task(task: Task, images: InputSpec | None) -> tuple[CutPlan, Data]:
    """Return where the network of a task is cut, and the preprocessing of its images.

    Args:
        task: Its weights as ``with_weights`` gives them.
        images: What the folder of its weights states, or None.

    Raises:
        CutError: Several tensors cross the cut.
        UsageError: Channels or normalization do not fit the network.
    """
    channels = task.kwargs.get("in_chans", 1 if task.data.train.channels == "L" else 3)
    if channels not in (1, 3):
        raise UsageError(f"Task {task.name!r}: in_chans must be 1 (gray) or 3 (RGB), got {channels!r}.")
    kwargs = {**task.kwargs, "num_classes": len(task.data.train.classes)}
    if channels != 3 or BUILDERS[task.builder].like_timm:  # other builders need not know the argument
        kwargs["in_chans"] = channels
    planned = plan(task.model, task.cut, kwargs=kwargs, size=task.size, builder=task.builder)
    _check_crossing(task, planned)
    size = task.size or planned.input.size
    planned = to_width(task, planned, channels, size)
    data = Data(
        size,
        "L" if channels == 1 else "RGB",
        (),
        (),
        labels=tuple(label(name) for name in task.data.train.classes),
    )
    if (
        task.data.train.size is None
    ):  # photos of any proportions: resized and cut as the network's configuration says
        configured = planned.input
        data = attrs.evolve(
            data, interpolation=configured.interpolation, crop_pct=configured.crop_pct, crop_mode="center"
        )
    if task.normalize is not None:
        mean, std = _stated(task, channels)
    elif task.weights == "pretrained":
        mean, std = planned.input.mean, planned.input.std
    else:
        mean, std = fitting(task.data.train, data).statistics()
    if images is not None:
        crop: Any = images.crop_mode
        data = attrs.evolve(
            data, interpolation=images.interpolation, crop_pct=images.crop_pct, crop_mode=crop
        )
    return planned, attrs.evolve(data, mean=mean, std=std)


def to_width(task: Task, planned: CutPlan, channels: int, size: tuple[int, int]) -> CutPlan:
    """Return a plan with the width that a task states, and with the head of another network if it names one.

    Args:
        task: May state ``width`` and ``rest``.
        planned: Plan of its model.
        channels: Channels of the images.
        size: Size of the images.

    Raises:
        CutError: The features are no maps of channels, or several tensors.
    """
    if task.width is None and task.rest is None:
        return planned
    own_width_of(planned.extractor)  # refuses what no 1x1 convolution fits
    other, width = planned, task.width
    if isinstance(task.rest, Rest):
        kwargs = {**task.rest.kwargs, "num_classes": len(task.data.train.classes), "in_chans": channels}
        other = plan(task.rest.model, task.rest.cut, kwargs=kwargs, size=size, builder=task.rest.builder)
        _check_crossing(task, other)
        width = width or own_width_of(other.extractor)
    return attrs.evolve(
        planned,
        extractor=attrs.evolve(planned.extractor, width=width),
        head=attrs.evolve(other.head, width=width),
        class_layer=other.class_layer,
    )


def _check_crossing(task: Task, planned: CutPlan) -> None:
    blueprint = planned.extractor
    if blueprint.cut_outputs != 1:
        raise CutError(
            f"Task {task.name!r}: {blueprint.cut_outputs} tensors cross {blueprint.cut!r} of {blueprint.model}; "
            "training needs a cut where one does, as auxiliary heads take one. `compatkit cuts` lists them.",
            subject=blueprint.cut,
        )


def _stated(task: Task, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation that a task states, one a channel."""
    mean, std = ((task.normalize or {})[name] for name in ("mean", "std"))
    if len(mean) not in (1, channels):
        raise UsageError(
            f"Task {task.name!r} has images of {channels} {'channels' if channels > 1 else 'channel'}; its "
            f"normalization states {len(mean)}. Give one number for all, or one a channel."
        )
    return (mean * channels, std * channels) if len(mean) == 1 else (mean, std)
