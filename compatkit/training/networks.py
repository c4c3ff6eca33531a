"""Build the networks of tasks, with initial weights or from components."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.adapters.blueprints import build, build_pair, check_builds_again, structural, with_classes
from compatkit.adapters.builders import as_built_here
from compatkit.adapters.cutting.cache import check_once
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.cutting.sideeffects import copied
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.stitching.widths import Joined
from compatkit.contracts.contract import Blueprint, Contract, Data, Protocol, Statistical
from compatkit.contracts.contract_rules import check_new_contract
from compatkit.contracts.labels import label
from compatkit.errors import CutError, UsageError
from compatkit.evaluation.preprocessing import fitting
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values, compare
from compatkit.registry.weights.tensorfile import pieces, state_digest
from compatkit.training.network_plans import plan_task, with_weights
from compatkit.training.precision import Precision
from compatkit.training.randomness import seed_of
from compatkit.training.task import Rest, Task
from compatkit.training.task_state import TaskState

if TYPE_CHECKING:
    from compatkit.evaluation.component import Component


def start_from_parts(task: Task, part: Component, seed: int, precision: Precision) -> TaskState:
    """Return the state of a task that starts from components; their modules are copied.

    Args:
        task: Task whose ``head`` is a component, or None to draw a head of the extractor's own network.
        part: The task's extractor.
        seed: Seed of the run; draws the head if it is not a component.
        precision: Precision of the run.

    Raises:
        UsageError: The classes are not those of the head, or the head does not take the features.
        CutError: Several tensors cross the cut, the network cannot have that number of classes, or its head cannot be
            rebuilt.
    """
    blueprint = as_built_here(part.manifest.blueprint)
    if blueprint.cut_outputs != 1:
        raise CutError(
            f"Task {task.name!r}: {blueprint.cut_outputs} tensors cross between extractor and head of "
            f"{part.reference}; training needs parts with one.",
            subject=part.reference,
        )
    data = _data(task, part)
    extractor = copied(part.module)
    head_blueprint, class_layer, head = _head(task, blueprint, seed)
    for module, source in ((extractor, part), (head, task.head or part)):
        check_values(module.state_dict(), f"Task {task.name!r}, started from {source.reference}", UNUSABLE)
    with torch.no_grad():
        features = extractor.eval()(torch.zeros(2, len(data.mean), *data.size))
        _check_fits(task, part, head.eval(), features)
    if task.head is None:
        check_builds_again(f"Task {task.name!r}", {"head": head}, {"head": head_blueprint}, features.shape)
    if not task.supervised:
        head.requires_grad_(False)
    if task.freeze_extractor:
        extractor.requires_grad_(False)
    blueprints = blueprint, head_blueprint, class_layer
    return _state(task, blueprints, (extractor, head), data, tuple(features.shape), precision)


def _state(
    task: Task,
    blueprints: tuple[Blueprint, Blueprint, tuple[str, ...]],
    parts: tuple[nn.Module, nn.Module],
    data: Data,
    shape: tuple[int, ...],
    precision: Precision,
) -> TaskState:
    extractor, head = map(precision.place, parts)
    state = TaskState(task, *blueprints, extractor, head, data, fitting(task.data.train, data), shape)
    if task.freeze_stages:
        state.frozen_norms = tuple(_freeze_stages(state))
    state.initial = initial_digest(state)
    return state


def _freeze_stages(state: TaskState) -> Iterator[nn.Module]:
    """Freeze the first stages of a network, in both parts; yield their batch normalization layers."""
    task, blueprint = state.task, state.extractor_blueprint
    stages = state.stages("freeze_stages")
    last = max(stages.values())  # the stage of the class layer
    if task.freeze_stages > last:
        raise UsageError(
            f"Task {task.name!r} has freeze_stages={task.freeze_stages}; {blueprint.model} has {last} stages before "
            "its class layer, including the stem.",
            subject=task.name,
        )
    frozen = {name for name, stage in stages.items() if stage < task.freeze_stages}
    parts = [state.extractor]
    if state.head_blueprint.network == blueprint.network:
        parts.append(state.head)  # else it is the rest of another network
    for part in parts:
        for name, parameter in part.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in frozen)
        for name, module in part.named_modules():
            if isinstance(module, _BatchNorm) and f"{name}.running_mean" in frozen:
                yield module


def _data(task: Task, part: Component) -> Data:
    """Return the extractor's preprocessing with the classes of the head, which must be those of the images."""
    data, image_labels = part.manifest.contract.data, tuple(map(label, task.data.classes))
    if task.head is None:
        return attrs.evolve(data, labels=image_labels)
    labels = task.head.manifest.contract.data.labels
    names, image_names = ([each.name for each in side or ()] for side in (labels, image_labels))
    if task.supervised and names != image_names:
        raise UsageError(
            f"Task {task.name!r} starts from the head {task.head.reference} with {names or 'unnamed classes'}; the "
            f"images have {image_names}. registry.task reorders them if the head has all; else leave the head out.",
            subject=task.head.reference,
        )
    return attrs.evolve(data, labels=labels)


def _head(task: Task, blueprint: Blueprint, seed: int) -> tuple[Blueprint, tuple[str, ...], nn.Module]:
    """Return blueprint, class layer and module of the head, on the CPU."""
    if task.head is not None:
        return as_built_here(task.head.manifest.blueprint), (), copied(task.head.module)
    source = task.rest if isinstance(task.rest, Rest) else blueprint
    kwargs = {**source.kwargs, "num_classes": len(task.data.classes)}
    if "in_chans" in blueprint.kwargs:
        kwargs["in_chans"] = blueprint.kwargs["in_chans"]
    size, builder = blueprint.traced_size, source.builder
    planned = plan(source.model, source.cut, kwargs=kwargs, size=size, builder=builder)
    head = attrs.evolve(planned.head, width=blueprint.width)
    return head, planned.class_layer, build(head, seed=seed_of(seed, "initial", task.name))


def _check_fits(task: Task, part: Component, head: nn.Module, features: torch.Tensor) -> None:
    try:
        head(features)
    except RuntimeError as error:
        reference = task.head.reference if task.head is not None else "its head"
        raise UsageError(
            f"Task {task.name!r}: {reference} does not take the features {tuple(features.shape[1:])} of "
            f"{part.reference}: {error}. `compatkit check` shows what each expects.",
            subject=reference,
        ) from error


def prepare_task(task: Task, seed: int, precision: Precision) -> TaskState:
    """Build a task's network, and convert its images to size and channels.

    Checks that head(extractor(x)) equals the complete network bitwise. For tasks that start from components see
    ``start_from_parts``.

    Args:
        task: Task of the user.
        seed: Seed of the run.
        precision: Device, dtype and memory layout.

    Raises:
        UnknownName: The model or cut does not exist.
        CutError: The network cannot be cut there.
        UsageError: Components do not fit the task.
        IntegrityError: Initial weights are not usable.
    """
    if task.extractor is not None:
        return start_from_parts(task, task.extractor, seed, precision)
    task, images = with_weights(task)
    planned, data = plan_task(task, images)
    weights_seed = seed_of(seed, "initial", task.name)
    complete, extractor, head = _network(
        task, planned.extractor, planned.head, planned.class_layer, weights_seed
    )
    check_values(complete.state_dict(), f"Task {task.name!r}, initial weights", UNUSABLE)
    prove(complete, extractor, head, data.size, len(data.mean))
    images = signal((2, len(data.mean), *data.size))
    parts = {"extractor": extractor.eval(), "head": head.eval()}
    blueprints = {"extractor": planned.extractor, "head": planned.head}
    check_builds_again(f"Task {task.name!r}", parts, blueprints, images.shape)
    with torch.no_grad():
        shape = extractor(images).shape
    _check_publishable(task, parts, blueprints, data)
    _warn_of_single_positions(task, head, data, tuple(shape))
    cut = planned.extractor, planned.head, planned.class_layer
    return _state(task, cut, (extractor, head), data, tuple(shape), precision)


def _check_publishable(
    task: Task, parts: Mapping[str, nn.Module], blueprints: Mapping[str, Blueprint], data: Data
) -> None:
    """Raise for parts whose ports, blueprints or tensors fit no contract or file."""

    def check() -> None:
        extractor = structural(parts["extractor"], blueprints["extractor"])
        head = structural(parts["head"], blueprints["head"], feature_ports=extractor.outputs)
        for side, ports, labels in (("extractor", extractor, None), ("head", head, data.labels)):
            contract = Contract(ports, attrs.evolve(data, labels=labels), Protocol("none"), Statistical())
            check_new_contract(contract, blueprints[side], f"Task {task.name!r}, {side}")
            pieces(parts[side].state_dict())

    check_once([*blueprints.values()], "publishable", data, check)


def _warn_of_single_positions(task: Task, head: nn.Module, data: Data, shape: tuple[int, ...]) -> None:
    convolves = any(isinstance(part, nn.Conv2d) and max(part.kernel_size) > 1 for part in head.modules())
    if shape[2:] == (1, 1) and convolves:
        warnings.warn(
            f"Task {task.name!r}: images of {'x'.join(map(str, data.size))} pixels give features of 1x1 at "
            f"{task.cut!r}, so convolutions of the head see one position and padding. Use a larger size, or cut "
            "earlier.",
            stacklevel=2,
        )


def redraw(state: TaskState, seed: int, *, class_layer: bool = True) -> None:
    """Draw the initial weights again, with the same body for any number of classes.

    The body is that of a network with two classes, so that it does not depend on the number of random numbers of the
    class layer. The class layer is drawn with the task's number of classes, or not changed.

    Args:
        state: State of the task; its modules are changed in place.
        seed: Seed of the weights.
        class_layer: Whether to draw the class layer too.
    """
    blueprints, parts = (state.extractor_blueprint, state.head_blueprint), (state.extractor, state.head)
    two_classes = with_classes(blueprints[0], 2), with_classes(blueprints[1], 2)
    bodies = _network(state.task, *two_classes, state.class_layer, seed)[1:]
    tops = _network(state.task, *blueprints, state.class_layer, seed)[1:] if class_layer else parts
    for module, body, top in zip(parts, bodies, tops, strict=True):
        weights = body.state_dict()
        weights.update(
            {name: value for name, value in top.state_dict().items() if name.startswith(state.class_layer)}
        )
        module.load_state_dict(weights, strict=True)
    state.initial = initial_digest(state)


def initial_digest(state: TaskState) -> str:
    """Return the tensor digest of all parameters except the class layer."""
    extractor, head = (dict(part.named_parameters()) for part in (state.extractor, state.head))
    parameters = {
        **extractor,
        **{f"head.{name}" if name in extractor else name: value for name, value in head.items()},
    }
    body = {name: value for name, value in parameters.items() if not name.startswith(state.class_layer)}
    return state_digest(body)


def start_digest(*modules: nn.Module) -> str:
    """Return the tensor digest of all tensors of modules, including class layers and buffers."""
    return state_digest(
        {
            f"{index}.{name}": value
            for index, module in enumerate(modules)
            for name, value in module.state_dict().items()
        }
    )


def parameters_digest(module: nn.Module) -> str:
    """Return the tensor digest of a module's parameters, which identifies an auxiliary head as an anchor."""
    return state_digest(dict(module.named_parameters()))


def _network(
    task: Task, extractor: Blueprint, head: Blueprint, class_layer: tuple[str, ...], seed: int
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Return the complete network of a task and its two parts; the head may come from another network.

    The head of another network is drawn from its own stream: from the same seed, it would repeat the random numbers of
    the extractor.

    Raises:
        UsageError: Weights do not fit.
    """
    own_head = attrs.evolve(extractor, side="head")
    if own_head == head:
        return _pair(task, extractor, head, class_layer, seed)
    # The class layer is that of the head's network, so that the extractor's network loads all its weights.
    extractor_part = _pair(task, extractor, own_head, (), seed)[1]
    head_part = build(head, seed=seed_of(seed, "rest"))
    return Joined(extractor_part, head_part), extractor_part, head_part


def _pair(
    task: Task, extractor: Blueprint, head: Blueprint, class_layer: tuple[str, ...], seed: int
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Return the complete network and its two parts, which share its parameters.

    The class layer is drawn from the seed, unless the task keeps that of its weights.
    """
    network, *parts = build_pair(extractor, head, seed=seed)
    if task.weights is None:
        return network, parts[0], parts[1]
    if not isinstance(task.weights, Mapping):
        weights = Path(task.weights) if isinstance(task.weights, PathLike) else task.weights
        drawn = {name: value for name, value in network.state_dict().items() if name.startswith(class_layer)}
        network, *parts = build_pair(extractor, head, seed=seed, weights=weights)
        network.load_state_dict(drawn, strict=False)
        return network, parts[0], parts[1]
    state: Mapping[str, Tensor] = task.weights
    redrawn = () if task.keep_class_layer else class_layer
    body = {name: value for name, value in state.items() if not str(name).startswith(redrawn)}
    expected = {name: value for name, value in network.state_dict().items() if not name.startswith(redrawn)}
    if mismatch := compare(body, expected):
        raise UsageError(
            f"Task {task.name!r}: the weights do not fit {task.model}: {'; '.join(mismatch.sentences())}. Give the "
            "state dict of the same model for images with the same channels."
        )
    check_values(body, f"The weights of task {task.name!r}", UNUSABLE, network.state_dict())
    network.load_state_dict(body, strict=False)
    return network, parts[0], parts[1]
