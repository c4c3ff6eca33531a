"""A task whose network starts from components: their weights, statistics and preprocessing, to the last bit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import attrs
import torch
from torch import nn

from compatkit.adapters.blueprints import build, plan
from compatkit.contracts.contract import Blueprint, Data
from compatkit.contracts.labels import label
from compatkit.errors import CutError, UsageError
from compatkit.evaluation.preprocessing import fitting
from compatkit.training.precision import Precision
from compatkit.training.randomness import seed_of
from compatkit.training.rest import Rest
from compatkit.training.state import TaskState
from compatkit.training.task import Task

if TYPE_CHECKING:
    from compatkit.evaluation.matrix import LoadedPart


def start_from_parts(task: Task, part: LoadedPart, seed: int, precision: Precision) -> TaskState:
    """Return the state of a task before its first step; the components' own modules are never moved.

    Args:
        task: Its ``head`` is a component, or None: a head of the extractor's own network is drawn then.
        part: The task's extractor.
        seed: Of the run; draws the head that is no component.
        precision: Where modules are put.

    Raises:
        UsageError: Other classes than the head's, or a head that does not take the features.
        CutError: Several tensors cross, or the network cannot have that count of classes.
    """
    blueprint = part.manifest.blueprint
    if blueprint.cut_outputs != 1:
        raise CutError(
            f"Task {task.name!r}: {blueprint.cut_outputs} tensors cross between extractor and head of {part.reference}"
            "; training takes parts where one does.",
            subject=part.reference,
        )
    data = _data(task, part)
    extractor = copy.deepcopy(part.module)
    head_blueprint, class_layer, head = _head(task, blueprint, seed)
    with torch.no_grad():
        features = extractor.eval()(torch.zeros(2, len(data.mean), *data.size))
        _check_fits(task, part, head.eval(), features)
    if not task.supervised:
        head.requires_grad_(False)
    if task.freeze_extractor:
        extractor.requires_grad_(False)
    extractor, head = (
        one.to(precision.device, memory_format=precision.memory_format)  # type: ignore[call-overload]
        for one in (extractor, head)
    )
    shown = fitting(task.data.train, data)
    return TaskState(
        task, blueprint, head_blueprint, class_layer, extractor, head, data, shown, tuple(features.shape)
    )


def _data(task: Task, part: LoadedPart) -> Data:
    """Return the extractor's preprocessing with the classes of the head; they must be those of the images."""
    taken, own = part.manifest.contract.data, tuple(map(label, task.data.classes))
    if task.head is None:
        return attrs.evolve(taken, labels=own)
    known = task.head.manifest.contract.data.labels
    names = [one.name for one in known or ()]
    came = [one.name for one in own]
    if task.supervised and names != came:
        raise UsageError(
            f"Task {task.name!r} starts from the head {task.head.reference}, which tells apart "
            f"{names or 'classes without names'}; the images are of {came}. registry.task brings classes into the "
            "head's order where it has them all; else leave the head out, and one is drawn for these classes.",
            subject=task.head.reference,
        )
    return attrs.evolve(taken, labels=known)


def _head(task: Task, blueprint: Blueprint, seed: int) -> tuple[Blueprint, tuple[str, ...], nn.Module]:
    """Return blueprint, class layer and module of the head, on the CPU."""
    if task.head is not None:
        return task.head.manifest.blueprint, (), copy.deepcopy(task.head.module)
    rest = task.rest if isinstance(task.rest, Rest) else None
    planned = plan(
        blueprint.model if rest is None else rest.backbone,
        blueprint.split if rest is None else rest.split,
        kwargs={
            **(blueprint.kwargs if rest is None else rest.kwargs),
            **{name: value for name, value in blueprint.kwargs.items() if name == "in_chans"},
            "num_classes": len(task.data.classes),
        },
        size=blueprint.traced_size,
        builder=blueprint.builder if rest is None else rest.builder,
    )
    made = attrs.evolve(planned.head, width=blueprint.width)
    return made, planned.class_layer, build(made, seed=seed_of(seed, "initial", task.name))


def _check_fits(task: Task, part: LoadedPart, head: nn.Module, features: torch.Tensor) -> None:
    try:
        head(features)
    except RuntimeError as error:
        whose = task.head.reference if task.head is not None else "its head"
        raise UsageError(
            f"Task {task.name!r}: {whose} does not take the features {tuple(features.shape[1:])} of {part.reference}: "
            f"{error}. `compatkit check` says what each expects.",
            subject=whose,
        ) from error
