"""Check that every parameter that a loss reaches is trained in its step: other gradients would be lost silently.

A plugin that makes a module and forgets to hand it to the run would otherwise train everything but that module,
silently. The graph of the loss is followed in the first step of each set of active plugins and in steps 1, 2, 4, 8,
...; no tensor is read. Gradients of another task's network are looked for after each backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from compatkit.errors import PluginError, UsageError
from compatkit.hooks import StepLike
from compatkit.plugins import Member
from compatkit.training.state import TaskState


def check_reach(loss: Tensor, trained: Iterable[Tensor], members: Iterable[Member]) -> None:
    """Raise if a loss has gradients for a parameter that is not trained.

    Args:
        loss: Of a step, with its graph.
        trained: Parameters that optimizers update, or that a task keeps frozen.
        members: The plugins of the run.

    Raises:
        PluginError: Names the plugin and its parameter.
    """
    known = {id(parameter) for parameter in trained}
    strays = {id(leaf): leaf for leaf in _leaves(loss) if id(leaf) not in known}
    if not strays:
        return
    plugins = tuple(members)
    for member in plugins:
        for name, tensor in _tensors_of(member.instance):
            if id(tensor) in strays:
                raise member.owner.error(_untrained(f"the parameter {name!r}", tensor), "compatkit_set_up")
    # A plain tensor that no plugin keeps lives for this step only; a parameter is there to be trained.
    for stray in strays.values():
        if isinstance(stray, nn.Parameter):
            message, hook = _untrained("a parameter that it does not keep", stray), "compatkit_set_up"
            if len(plugins) == 1:
                raise plugins[0].owner.error(message, hook)
            raise _of_plugins(plugins, message)


def cross_task_error(members: Sequence[Member], step: StepLike, other: str) -> PluginError:
    """Return the error for gradients of another task's network, which a step of this task would not update.

    Args:
        members: The plugins of the run.
        step: After its backward pass.
        other: Name of the other task.
    """
    return _of_plugins(
        members,
        f"in step {step.number} of task {step.task.name!r} there is a gradient for the network of task {other!r}, "
        "which moves in its own steps only, so that this gradient would be lost. Detach what comes from the other "
        f"network, and give the same loss in the steps of {other!r}, where it moves that one.",
    )


def without_gradient(task: TaskState, number: int) -> UsageError:
    """Return the error for a step whose loss has no gradient.

    Args:
        task: Whose step it is.
        number: Of the step.
    """
    if task.runs_head:
        reason = (
            "its network is frozen, and no regularizer that is active moves a shared head. Leave some parameters free, "
            "or begin later."
        )
    else:
        lacks = "head of its own" if task.supervised else "labels"
        reason = (
            f"it has no {lacks}, and no regularizer gave a loss that moves its extractor. Name one that does in every "
            "step."
        )
    return UsageError(
        f"In step {number} task {task.name!r} has a loss without any gradient: {reason}", subject=task.name
    )


def _of_plugins(members: Sequence[Member], message: str) -> PluginError:
    """Return an error of one of some plugins."""
    names = [member.use.as_ for member in members]
    plugin = names[0] if len(names) == 1 else None
    return PluginError(f"Plugin {' or '.join(map(repr, names))}: {message}", plugin=plugin)


def _untrained(what: str, parameter: Tensor) -> str:
    return (
        f"the loss reaches {what}, of shape {tuple(parameter.shape)}, and no optimizer moves it, so that it would stay "
        "as it is. In compatkit_set_up, hand its module to setup.own(name, module) and use what that returns; or set "
        "requires_grad_(False)."
    )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors that a backward pass from ``loss`` gives gradients to."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        waiting.extend(following for following, _ in node.next_functions)


def _tensors_of(plugin: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a plugin holds, with their paths among its attributes."""
    state = object.__getstate__(plugin)  # instance attributes, those in slots too
    for part in state if isinstance(state, tuple) else (state,):
        yield from _inside("", part or {})


def _inside(path: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        yield from ((f"{path}.{name}", item) for name, item in value.named_parameters())
    elif isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from _inside(f"{path}.{key}" if path else str(key), item)
