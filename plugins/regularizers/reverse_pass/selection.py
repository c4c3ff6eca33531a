"""Select the layers to reverse: those with a linear part except gates and the class layer, or those named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import TaskState
from compatkit.errors import UnknownName, UsageError, near

from .adjoint import LINEAR, refusal


@attrs.frozen
class Selection:
    """The layers of one task to reverse.

    Attributes:
        layers: Their paths, in the order of their first calls.
        left_out: Reason for each other layer with a linear part.
    """

    layers: tuple[str, ...]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, task: TaskState, globs: Sequence[str] | None) -> Selection:
        """Choose among the layers of a task.

        Args:
            task: Its network is run once on two blank images, and left unchanged.
            globs: Path patterns such as ``"layer2.*"``; a leading ``!`` excludes. Without other patterns all layers
                except the class layer and gates are included.

        Raises:
            UnknownName: A pattern matches no layer.
            UsageError: A layer has no transpose, or no layer is left; the head of a task without labels is excluded.
        """
        layers = linear_layers(task)
        inner = survey(task, layers)
        included = [glob for glob in globs or () if not glob.startswith("!")]
        excluded = [glob[1:] for glob in globs or () if glob.startswith("!")]
        for glob in (*included, *excluded):
            if not any(fnmatchcase(name, glob) for name in layers):
                raise _fits_nothing(glob, task, layers)
        idle = set() if task.runs_head else layers.keys() - dict(task.extractor.named_modules()).keys()
        left_out: dict[str, str] = {}
        for name in layers:
            if any(fnmatchcase(name, glob) for glob in excluded):
                left_out[name] = "named with ! in `layers`"
            elif included and not any(fnmatchcase(name, glob) for glob in included):
                left_out[name] = "not named in `layers`"
            elif name in idle:
                left_out[name] = "of the head, which does not run for a task without labels or own head"
            elif name not in inner:
                left_out[name] = "never called: its weight is used elsewhere, or not at all"
            elif not included and f"{name}.".startswith(task.class_layer):
                left_out[name] = "class layer"
            elif not included and inner[name]:
                left_out[name] = "gate: works on pooled features inside of a block"
        selected = tuple(name for name in inner if name not in left_out)
        for name in selected:
            if (why := refusal(layers[name])) is not None:
                raise UsageError(
                    f"reverse_pass cannot reverse the layer {name!r} of task {task.name!r}: {why}. Leave it out with "
                    f'layers=["!{name}"].'
                )
        if not selected:
            raise UsageError(
                f"reverse_pass finds no layer to reverse in task {task.name!r} ({task.task.model}); left out: "
                f"{'; '.join(f'{name} ({why})' for name, why in left_out.items()) or 'none has a linear part'}."
            )
        return cls(selected, left_out)


def factors(layers: Iterable[str], weights: Mapping[str, float] | None) -> dict[str, float]:
    """Return the factor of each layer: that of the last matching pattern, else 1.

    Args:
        layers: Paths of the layers.
        weights: Factor by path pattern, or None.

    Raises:
        UnknownName: A pattern matches no layer.
    """
    names = list(layers)
    by_layer = dict.fromkeys(names, 1.0)
    for glob, weight in (weights or {}).items():
        fitting = [name for name in names if fnmatchcase(name, glob)]
        if not fitting:
            raise UnknownName(
                f"layer_weights: {glob!r} matches none of the reversed layers{_hint(glob, names)}."
            )
        by_layer.update(dict.fromkeys(fitting, float(weight)))
    return by_layer


def select_globs(layers: Sequence[str], globs: Sequence[str] | None, task: str) -> tuple[str, ...]:
    """Return the layers of a chain that match the patterns, all without patterns; a leading ``!`` excludes.

    Args:
        layers: Paths of the chain's linear layers.
        globs: Path patterns, or None.
        task: Name of the task, for messages.

    Raises:
        UnknownName: A pattern matches no layer.
        UsageError: No layer is left.
    """
    included = [glob for glob in globs or () if not glob.startswith("!")] or ["*"]
    excluded = [glob[1:] for glob in globs or () if glob.startswith("!")]
    for glob in (*included, *excluded):
        if not any(fnmatchcase(name, glob) for name in layers):
            raise UnknownName(
                f"layers: {glob!r} matches no layer of the chain of task {task!r}{_hint(glob, layers)}."
            )
    selected = tuple(
        name
        for name in layers
        if any(fnmatchcase(name, glob) for glob in included)
        and not any(fnmatchcase(name, glob) for glob in excluded)
    )
    if not selected:
        raise UsageError(
            f"layers: the patterns exclude all layers of the chain of task {task!r}: {', '.join(layers)}."
        )
    return selected


def linear_layers(task: TaskState) -> dict[str, nn.Module]:
    """Return all layers with a linear part of a task's network, by their paths in the whole network."""
    return {
        name: module
        for part in (task.extractor, task.head)
        for name, module in part.named_modules()
        if name and isinstance(module, LINEAR)
    }


def survey(task: TaskState, layers: Mapping[str, nn.Module]) -> dict[str, bool]:
    """Run a task's network once; return the layers called, in order, and whether each is a gate.

    A gate (squeeze and excitation, global context) sees one position inside a block that maps several positions to
    several.

    Args:
        task: State of the task.
        layers: Layers to watch, by name.
    """
    seen: dict[str, bool] = {}
    open_maps: list[tuple[bool, list[str]]] = []
    names = {id(module): name for name, module in layers.items()}

    def entered(module: nn.Module, inputs: Any) -> None:
        if (name := names.get(id(module))) is not None and inputs and name not in seen:
            seen[name] = False
            if _positions(module, inputs[0]) == 1:
                for _, pooled in open_maps:
                    pooled.append(name)
        open_maps.append((_is_map(inputs[0]) if inputs else False, []))

    def left(module: nn.Module, inputs: Any, output: Any) -> None:
        was_map, pooled = open_maps.pop()
        if was_map and _is_map(output) and inputs[0].shape[2:] == output.shape[2:]:
            seen.update(dict.fromkeys(pooled, True))

    parts = (task.extractor, task.head)
    inside = [module for part in parts for module in part.modules() if module not in parts]
    hooks = [module.register_forward_pre_hook(entered) for module in inside]
    hooks += [module.register_forward_hook(left) for module in inside]
    try:
        with _at_rest(parts):
            images = torch.zeros(2, len(task.data.mean), *task.data.size)
            first = next(task.extractor.parameters(), images)
            task.head(task.extractor(images.to(first.device, first.dtype)))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _positions(layer: nn.Module, value: Any) -> int:
    """Return the number of positions per image; a convolution over channels has one."""
    if not isinstance(value, Tensor) or isinstance(layer, nn.Conv1d):
        return 1
    return prod(value.shape[1:-1] if isinstance(layer, nn.Linear) else value.shape[2:])


def _is_map(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and prod(value.shape[2:]) > 1


@contextmanager
def _at_rest(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Put parts into eval mode without gradients; restore all modes afterwards."""
    modes = [(module, module.training) for part in parts for module in part.modules()]
    try:
        for part in parts:
            part.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _fits_nothing(glob: str, task: TaskState, layers: Mapping[str, nn.Module]) -> UsageError:
    others = {name for part in (task.extractor, task.head) for name, _ in part.named_modules()}
    if any(fnmatchcase(name, glob) for name in others):
        return UsageError(
            f"layers: what {glob!r} matches in task {task.name!r} has no linear part; expected dense layers or "
            "convolutions."
        )
    return UnknownName(f"layers: {glob!r} matches no layer of task {task.name!r}{_hint(glob, list(layers))}.")


def _hint(glob: str, names: Sequence[str]) -> str:
    close = near(glob, names, 3, 0.4)
    return (
        f"; near it are {', '.join(map(repr, close))}"
        if close
        else f"; there is {names[0]!r}"
        if names
        else ""
    )
