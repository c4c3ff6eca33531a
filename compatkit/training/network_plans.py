"""Plan the network of a task: model, arguments, cut, and preprocessing of the images."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, cast

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
    """Return a task with the local path of its weights, and the images of the ``config.json`` beside them, or None.

    Args:
        task: Task of the user.

    Raises:
        UsageError: The weights are of another architecture, or of images that no contract describes.
        CompatkitError: See ``locate``.
    """
    if not isinstance(task.weights, str | PathLike) or task.weights == "pretrained":
        return task, None
    located = locate(Path(task.weights) if isinstance(task.weights, PathLike) else task.weights)
    images, architecture = located.images, task.model.partition(".")[0]
    if images is None:
        return attrs.evolve(task, weights=located.path), None
    if located.architecture != architecture or not BUILDERS[task.builder].like_timm:
        raise UsageError(
            f"Task {task.name!r} has the model {architecture} of {task.builder}, but its weights {task.weights} are of "
            f"timm's {located.architecture}, as their config.json says. Change the model or the weights.",
            subject=task.name,
        )
    if images.crop_mode not in ("center", "squash"):
        raise UsageError(
            f"Task {task.name!r}: config.json of {task.weights} has crop_mode {images.crop_mode!r}; only 'center' and "
            "'squash' are supported. Write one of them there.",
            subject=task.name,
        )
    normalize = task.normalize or {"mean": images.mean, "std": images.std}
    kwargs, size = {**located.kwargs, **task.kwargs}, task.size or images.size
    return attrs.evolve(task, weights=located.path, kwargs=kwargs, size=size, normalize=normalize), images


def plan_task(task: Task, images: InputSpec | None) -> tuple[CutPlan, Data]:
    """Return the cut of a task's network, and the preprocessing of its images.

    Args:
        task: Task from ``with_weights``.
        images: Images from ``with_weights``, or None.

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
    labels = tuple(map(label, task.data.train.classes))
    data = Data(size, "L" if channels == 1 else "RGB", (), (), labels=labels)
    if task.data.train.size is None:  # images of various sizes
        interpolation, pct = planned.input.interpolation, planned.input.crop_pct
        data = attrs.evolve(data, interpolation=interpolation, crop_pct=pct, crop_mode="center")
    if task.normalize is not None:
        mean, std = _mean_std(task, channels)
    elif task.weights == "pretrained":
        mean, std = planned.input.mean, planned.input.std
    else:
        mean, std = fitting(task.data.train, data).statistics()
    if images is not None:
        interpolation, pct, mode = images.interpolation, images.crop_pct, cast(Any, images.crop_mode)
        data = attrs.evolve(data, interpolation=interpolation, crop_pct=pct, crop_mode=mode)
    return planned, attrs.evolve(data, mean=mean, std=std)


def to_width(task: Task, planned: CutPlan, channels: int, size: tuple[int, int]) -> CutPlan:
    """Return a plan with the width of a task, and with the head of another network if the task has ``rest``.

    Args:
        task: Task with ``width`` and ``rest``.
        planned: Plan of its model.
        channels: Channels of the images.
        size: Size of the images.

    Raises:
        CutError: The features are not maps, or several tensors.
    """
    if task.width is None and task.rest is None:
        return planned
    own_width_of(planned.extractor)  # raises if no 1x1 convolution fits
    head_plan, width = planned, task.width
    if isinstance(task.rest, Rest):
        kwargs = {**task.rest.kwargs, "num_classes": len(task.data.train.classes), "in_chans": channels}
        head_plan = plan(task.rest.model, task.rest.cut, kwargs=kwargs, size=size, builder=task.rest.builder)
        _check_crossing(task, head_plan)
        width = width or own_width_of(head_plan.extractor)
    return attrs.evolve(
        planned,
        extractor=attrs.evolve(planned.extractor, width=width),
        head=attrs.evolve(head_plan.head, width=width),
        class_layer=head_plan.class_layer,
    )


def _check_crossing(task: Task, planned: CutPlan) -> None:
    blueprint = planned.extractor
    if blueprint.cut_outputs != 1:
        raise CutError(
            f"Task {task.name!r}: {blueprint.cut_outputs} tensors cross {blueprint.cut!r} of {blueprint.model}; "
            "training needs a cut that one tensor crosses. `compatkit cuts` lists them.",
            subject=blueprint.cut,
        )


def _mean_std(task: Task, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of a task's ``normalize``, one per channel."""
    mean, std = ((task.normalize or {})[name] for name in ("mean", "std"))
    if len(mean) not in (1, channels):
        raise UsageError(
            f"Task {task.name!r}: normalize has {len(mean)} numbers for images of {channels} channels. Give one "
            "number for all channels, or one per channel."
        )
    return (mean * channels, std * channels) if len(mean) == 1 else (mean, std)
