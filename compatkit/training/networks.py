"""Build the networks of tasks, with initial weights or from components."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, cast

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.adapters.blueprints import build, build_pair, check_builds_again, structural, with_classes
from compatkit.adapters.builders import as_built_here
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.cutting.sideeffects import copied
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.stitching.widths import Joined
from compatkit.contracts.contract import Blueprint, Contract, Data, Protocol, Statistical
from compatkit.contracts.contract_rules import check_made
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
    """Return the state of a task that starts from components, whose own modules are copied and not changed.

    Args:
        task: Its ``head`` is a component, or None: a head of the extractor's own network is drawn then.
        part: The task's extractor.
        seed: Seed of the run; draws the head if it is no component.
        precision: Precision of the run.

    Raises:
        UsageError: The classes are not those of the head, or the head does not take the features.
        CutError: Several tensors cross the cut, the network cannot have that count of classes, or its head cannot be
            built again.
    """
    blueprint = as_built_here(part.manifest.blueprint)
    if blueprint.cut_outputs != 1:
        raise CutError(
            f"Task {task.name!r}: {blueprint.cut_outputs} tensors cross between extractor and head of {part.reference}"
            "; training takes parts where one does.",
            subject=part.reference,
        )
    data = _data(task, part)
    extractor = copied(part.module)
    head_blueprint, class_layer, head = _head(task, blueprint, seed)
    for module, source in ((extractor, part), (head, task.head or part)):
        check_values(
            module.state_dict(), f"Task {task.name!r}, which starts from {source.reference}", UNUSABLE
        )
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
    """Freeze the first stages of a network, in both parts; yield their layers of batch normalization."""
    task, blueprint = state.task, state.extractor_blueprint
    stages = state.stages("freeze_stages")
    last = max(stages.values())  # the last has the class layer
    if task.freeze_stages > last:
        raise UsageError(
            f"Task {task.name!r} has freeze_stages={task.freeze_stages}; {blueprint.model} has {last} stages before "
            f"its class layer, the stem counted. Freeze {last} at most.",
            subject=task.name,
        )
    frozen = {name for name, stage in stages.items() if stage < task.freeze_stages}
    parts = [state.extractor]
    if state.head_blueprint.network == blueprint.network:
        parts.append(state.head)  # else it is the rest of another network
    for part in parts:
        for name, parameter in part.named_parameters():
            if name in frozen:
                parameter.requires_grad_(False)
        for name, module in part.named_modules():
            if isinstance(module, _BatchNorm) and f"{name}.running_mean" in frozen:
                yield module


def _data(task: Task, part: Component) -> Data:
    """Return the extractor's preprocessing with the classes of the head, which must be those of the images."""
    taken, own = part.manifest.contract.data, tuple(map(label, task.data.classes))
    if task.head is None:
        return attrs.evolve(taken, labels=own)
    known = task.head.manifest.contract.data.labels
    names = [known_label.name for known_label in known or ()]
    own_names = [own_label.name for own_label in own]
    if task.supervised and names != own_names:
        raise UsageError(
            f"Task {task.name!r} starts from the head {task.head.reference}, which tells apart "
            f"{names or 'classes without names'}; the images are of {own_names}. registry.task brings classes into the "
            "head's order where it has them all; else leave the head out, and one is drawn for these classes.",
            subject=task.head.reference,
        )
    return attrs.evolve(taken, labels=known)


def _head(task: Task, blueprint: Blueprint, seed: int) -> tuple[Blueprint, tuple[str, ...], nn.Module]:
    """Return blueprint, class layer and module of the head, on the CPU."""
    if task.head is not None:
        return as_built_here(task.head.manifest.blueprint), (), copied(task.head.module)
    rest = task.rest if isinstance(task.rest, Rest) else None
    planned = plan(
        blueprint.model if rest is None else rest.model,
        blueprint.cut if rest is None else rest.cut,
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


def _check_fits(task: Task, part: Component, head: nn.Module, features: torch.Tensor) -> None:
    try:
        head(features)
    except RuntimeError as error:
        reference = task.head.reference if task.head is not None else "its head"
        raise UsageError(
            f"Task {task.name!r}: {reference} does not take the features {tuple(features.shape[1:])} of "
            f"{part.reference}: {error}. `compatkit check` says what each expects.",
            subject=reference,
        ) from error


def prepare_task(task: Task, seed: int, precision: Precision) -> TaskState:
    """Build a task's network, and bring its images to size and channels.

    The cut is proved at once: head(extractor(x)) must equal the whole network bitwise. A task may start from
    components in place of initial weights: see ``start_from_parts``.

    Args:
        task: As the user made it.
        seed: Seed of the run.
        precision: Device, format and memory layout.

    Raises:
        UnknownName: The model or cut does not exist.
        CutError: The network cannot be cut there.
        UsageError: Components do not fit the task.
        IntegrityError: Initial weights that no network can use.
    """
    if task.extractor is not None:
        return start_from_parts(task, task.extractor, seed, precision)
    task, images = with_weights(task)
    planned, data = plan_task(task, images)
    drawn = seed_of(seed, "initial", task.name)
    whole, extractor, head = _network(task, planned.extractor, planned.head, planned.class_layer, drawn)
    check_values(whole.state_dict(), f"Task {task.name!r}, initial weights", UNUSABLE)
    prove(whole, extractor, head, data.size, len(data.mean))
    images = signal((2, len(data.mean), *data.size))
    parts, made = (
        {"extractor": extractor.eval(), "head": head.eval()},
        {"extractor": planned.extractor, "head": planned.head},
    )
    check_builds_again(f"Task {task.name!r}", parts, made, images.shape)
    with torch.no_grad():
        shape = extractor(images).shape
    _check_publishable(task, parts, made, data)
    _warn_of_single_positions(task, head, data, tuple(shape))
    blueprints = planned.extractor, planned.head, planned.class_layer
    return _state(task, blueprints, (extractor, head), data, tuple(shape), precision)


def _check_publishable(
    task: Task, parts: Mapping[str, nn.Module], blueprints: Mapping[str, Blueprint], data: Data
) -> None:
    """Raise for parts whose ports, blueprints or tensors no contract or file would hold.

    Args:
        task: For messages.
        parts: Extractor and head by side.
        blueprints: By side.
        data: Preprocessing and classes.

    Raises:
        CutError: Ports cannot be derived.
        FormatError: A value is out of range, or a tensor cannot be stored.
    """
    extractor_shape = structural(parts["extractor"], blueprints["extractor"])
    shapes = {
        "extractor": extractor_shape,
        "head": structural(parts["head"], blueprints["head"], feature_ports=extractor_shape.outputs),
    }
    for side, part in parts.items():
        labels = None if side == "extractor" else data.labels
        contract = Contract(shapes[side], attrs.evolve(data, labels=labels), Protocol("none"), Statistical())
        check_made(contract, blueprints[side], f"Task {task.name!r}, {side}")
        pieces(part.state_dict())


def _warn_of_single_positions(task: Task, head: nn.Module, data: Data, shape: tuple[int, ...]) -> None:
    convolves = any(isinstance(part, nn.Conv2d) and max(part.kernel_size) > 1 for part in head.modules())
    if shape[2:] == (1, 1) and convolves:
        warnings.warn(
            f"Task {task.name!r}: images of {'x'.join(map(str, data.size))} pixels leave features of 1x1 at "
            f"{task.cut!r}, so that convolutions of the head see one position and padding. Give a larger size, or "
            "split earlier.",
            stacklevel=2,
        )


def redraw(state: TaskState, seed: int, *, class_layer: bool = True) -> None:
    """Draw the initial weights again from ``seed``: the same body for any count of classes.

    The body is taken from a network with two classes, so that it does not depend on how many random numbers the class
    layer used up; the class layer itself is drawn with the task's own count, or not changed.

    Args:
        state: State of the task; its modules are changed in place.
        seed: Seed of the weights.
        class_layer: Whether the class layer is drawn too.
    """
    own = state.extractor_blueprint, state.head_blueprint
    two = with_classes(own[0], 2), with_classes(own[1], 2)
    bodies = _network(state.task, *two, state.class_layer, seed)[1:]
    tops = (
        _network(state.task, *own, state.class_layer, seed)[1:]
        if class_layer
        else (state.extractor, state.head)
    )
    for module, body, top in zip((state.extractor, state.head), bodies, tops, strict=True):
        drawn = body.state_dict()
        drawn.update({k: v for k, v in top.state_dict().items() if k.startswith(state.class_layer)})
        module.load_state_dict(drawn, strict=True)
    state.initial = initial_digest(state)


def initial_digest(state: TaskState) -> str:
    """Return the tensor digest of all parameters except the class layer."""
    left, right = (dict(part.named_parameters()) for part in (state.extractor, state.head))
    parameters = {
        **left,
        **{f"head.{name}" if name in left else name: value for name, value in right.items()},
    }
    body = {name: value for name, value in parameters.items() if not name.startswith(state.class_layer)}
    return state_digest(body)


def start_digest(*modules: nn.Module) -> str:
    """Return the tensor digest of all tensors of modules, class layers and buffers included."""
    return state_digest(
        {f"{i}.{k}": v for i, module in enumerate(modules) for k, v in module.state_dict().items()}
    )


def parameters_digest(module: nn.Module) -> str:
    """Return the tensor digest of a module's parameters, which identifies an auxiliary head as an anchor."""
    return state_digest(dict(module.named_parameters()))


def _network(
    task: Task, extractor: Blueprint, head: Blueprint, class_layer: tuple[str, ...], seed: int
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Return the whole network of a task and its two parts, whose head may be the rest of another network.

    The head of another network is drawn from a stream of its own: from the same seed, it would repeat the random
    numbers of the extractor.

    Raises:
        UsageError: Weights do not fit.
    """
    own = attrs.evolve(extractor, side="head")
    if own == head:
        return _pair(task, extractor, head, class_layer, seed)
    # The unused half has a class layer of its own; the head's class layer is not in the extractor's weights.
    left = _pair(task, extractor, own, (), seed)[1]
    right = build(head, seed=seed_of(seed, "rest"))
    return Joined(left, right), left, right


def _pair(
    task: Task, extractor: Blueprint, head: Blueprint, class_layer: tuple[str, ...], seed: int
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Return the whole network and its two parts; the parts hold the whole's parameters.

    The class layer is always drawn from ``seed``, unless the task keeps that of its weights.
    """
    whole, left, right = build_pair(extractor, head, seed=seed)
    if task.weights is None:
        return whole, left, right
    if not isinstance(task.weights, Mapping):
        weights = Path(task.weights) if isinstance(task.weights, PathLike) else task.weights
        drawn = {name: value for name, value in whole.state_dict().items() if name.startswith(class_layer)}
        whole, left, right = build_pair(extractor, head, seed=seed, weights=weights)
        whole.load_state_dict(drawn, strict=False)
        return whole, left, right
    state = cast(Mapping[str, Tensor], task.weights)
    anew = () if task.keep_class_layer else class_layer
    body = {name: value for name, value in state.items() if not str(name).startswith(anew)}
    wanted = {name: value for name, value in whole.state_dict().items() if not name.startswith(anew)}
    if mismatch := compare(body, wanted):
        raise UsageError(
            f"Task {task.name!r}: the weights given do not fit {task.model}: {'; '.join(mismatch.sentences())}. Give "
            "the state dict of the same model for the same kind of images."
        )
    check_values(body, f"The weights given to task {task.name!r}", UNUSABLE, whole.state_dict())
    whole.load_state_dict(body, strict=False)
    return whole, left, right
