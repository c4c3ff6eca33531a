"""Check that a loss has gradients for trained parameters alone, as others would be lost silently.

This detects a module that a plugin created but did not register with the run. The graph of the loss is searched in the
first step of each set of active plugins and in steps 1, 2, 4, 8, ..., without reading tensors. Gradients of another
task's network are checked after each backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from compatkit.errors import PluginError
from compatkit.hooks import StepLike
from compatkit.plugins import Member, RunPlugins
from compatkit.plugins.calls import Bound


def check_all_trained(loss: Tensor, trained: Iterable[Tensor], members: Iterable[Member]) -> None:
    """Raise if a loss has gradients for a parameter that is not trained.

    Args:
        loss: Loss of a step, with its graph.
        trained: Parameters that optimizers update, or that a task keeps frozen.
        members: Plugins of the run.

    Raises:
        PluginError: A parameter of a plugin is not trained; the message names both.
    """
    trained_ids = {id(parameter) for parameter in trained}
    untrained = {id(leaf): leaf for leaf in _leaves(loss) if id(leaf) not in trained_ids}
    if not untrained:
        return
    plugins = tuple(members)
    for member in plugins:
        for name, tensor in _tensors_of(member.instance):
            if id(tensor) in untrained:
                raise member.owner.error(_message(f"the parameter {name!r}", tensor), "compatkit_set_up")
    # Plain tensors outside plugins exist in this step only; a parameter is meant to be trained.
    for tensor in untrained.values():
        if isinstance(tensor, nn.Parameter):
            message, hook = _message("a parameter that it does not keep", tensor), "compatkit_set_up"
            if len(plugins) == 1:
                raise plugins[0].owner.error(message, hook)
            names = " or ".join(repr(member.use.as_) for member in plugins)
            raise PluginError(f"Plugin {names}: {message}", hook=hook)


def cross_task_error(
    losses: Sequence[Bound],
    after_backward: Sequence[Bound],
    step: StepLike,
    other: str,
    parameters: Iterable[Tensor],
) -> PluginError:
    """Return the error for gradients of another task's network, which a step of this task would not apply.

    Args:
        losses: Active regularizers of the step, which are called again to find the cause.
        after_backward: Hooks after the backward pass, which set the gradients if no loss did.
        step: Step after its backward pass.
        other: Name of the other task.
        parameters: Trained parameters of its network.
    """
    parameter_ids = {id(parameter) for parameter in parameters}
    causing = [bound.instance for bound in losses if _depends_on(bound, step, parameter_ids)]
    setting = [bound.instance for bound in after_backward if step.number in bound.phase]
    names = causing or setting or [bound.instance for bound in losses]
    subjects = " or ".join(map(repr, names)) or "of this run"
    source = "compatkit_after_backward sets" if setting and not causing else "a loss has"
    return PluginError(
        f"Plugin {subjects}: in step {step.number} of task {step.task.name!r} {source} a gradient for the network of "
        f"task {other!r}, which only its own steps update. Detach tensors of the other network, and return the same "
        f"loss in the steps of {other!r}.",
        plugin=names[0] if len(names) == 1 else None,
        hook=source.split()[0] if setting and not causing else "compatkit_losses",
    )


def check_no_gradients(parameters: Iterable[Tensor], plugins: RunPlugins, step: StepLike) -> None:
    """Raise if hooks after a step left gradients, as the next step would add them to its own.

    Args:
        parameters: All trained parameters.
        plugins: Plugins of the run.
        step: Step after its hooks.

    Raises:
        PluginError: Gradients are left; the message names the plugins with such hooks.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            break
    else:
        return
    hooks = {"compatkit_after_step": plugins.after_step, "compatkit_after_epoch": plugins.after_epoch}
    active = {
        hook: [bound.instance for bound in all_bound if step.number in bound.phase]
        for hook, all_bound in hooks.items()
    }
    names = list(dict.fromkeys(name for instances in active.values() for name in instances))
    called = [hook for hook, instances in active.items() if instances]
    raise PluginError(
        f"Plugin {' or '.join(map(repr, names))}: {' or '.join(called)} left gradients after step {step.number} of "
        f"task {step.task.name!r}, which the next step would add to its own. Use torch.autograd.grad, or set them to "
        "None.",
        plugin=names[0] if len(names) == 1 else None,
        hook=called[0] if len(called) == 1 else None,
    )


def _depends_on(bound: Bound, step: StepLike, parameter_ids: set[int]) -> bool:
    """Return whether a plugin's losses of a step depend on any of these parameters."""
    try:
        with torch.enable_grad():
            leaves = [leaf for loss in bound.function(step).values() for leaf in _leaves(loss)]
    except Exception:  # a hook that cannot be called twice in a step is named with the others
        return False
    return any(id(leaf) in parameter_ids for leaf in leaves)


def _message(what: str, parameter: Tensor) -> str:
    return (
        f"the loss depends on {what}, of shape {tuple(parameter.shape)}, which no optimizer updates. In "
        "compatkit_set_up, register its module with setup.own(name, module) and use the returned module; or set "
        "requires_grad_(False)."
    )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors that a backward pass computes gradients for."""
    visited, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        stack.extend(following for following, _ in node.next_functions)


def _tensors_of(plugin: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a plugin's attributes, with their paths."""
    state = object.__getstate__(plugin)  # instance attributes, also those in slots
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
