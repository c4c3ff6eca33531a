"""Explain errors of torch in a training step: backward through an earlier step, or an unsupported dtype."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from compatkit.errors import CompatkitError, PluginError, TrainingError, UsageError
from compatkit.plugins.calls import Bound
from compatkit.training.step import Step

FREED_GRAPH = "backward through the graph a second time"
CHANGED_IN_PLACE = "modified by an inplace operation"
"""Parts of torch's messages: the graph was freed; a tensor saved for backward was changed in place."""
DTYPE_WORDS = ("dtype", "BFloat16", "bfloat16", "Half")
"""Words in torch's messages about mismatched dtypes."""


def explained(error: RuntimeError, step: Step, loss_hooks: Sequence[Bound]) -> CompatkitError | None:
    """Return the error that names the cause of an error of torch; None if the cause is not known.

    Args:
        error: Error of the forward or backward pass.
        step: Step of the pass.
        loss_hooks: Loss hooks of the plugins that are active in the step; called once more to find the plugin that
            kept a tensor of an earlier step.

    Returns:
        PluginError for a loss that uses a graph of an earlier step; TrainingError for a network that cannot run in the
        precision of the run.
    """
    if loss_hooks and (FREED_GRAPH in str(error) or CHANGED_IN_PLACE in str(error)):
        plugins = [hook.instance for hook in loss_hooks if _uses_old_graph(hook, step)]
        if not plugins and FREED_GRAPH in str(error):
            plugins = [hook.instance for hook in loss_hooks]
        return _old_graph_error(plugins, step) if plugins else None
    if step.precision.dtype != "float32" and any(word in str(error) for word in DTYPE_WORDS):
        module = _module_of(error, {"extractor": step.task.extractor, "head": step.task.head})
        return TrainingError(
            f"Step {step.number} of task {step.task.name!r} cannot run in {step.precision.dtype}"
            f"{f', in its module {module!r}' if module else ''}: {str(error).splitlines()[0]}. Set "
            "Trainer(precision='float32'), or, in the forward of the module, cast values before they are written to a "
            "buffer: x.to(buffer.dtype).",
            subject=module or step.task.name,
        )
    return None


def no_gradient_error(step: Step) -> UsageError:
    """Return the error for a step whose loss has no gradient."""
    task = step.task
    missing = "head of its own" if task.supervised else "labels"
    reason = f"it has no {missing}, and no active regularizer has a loss that trains its extractor."
    if task.runs_head:
        reason = "its network is frozen, and no active regularizer trains a shared head."
    return UsageError(
        f"In step {step.number} task {task.name!r} has a loss without any gradient: {reason}",
        subject=task.name,
    )


def _old_graph_error(plugins: Sequence[str], step: Step) -> PluginError:
    return PluginError(
        f"Plugin {' or '.join(map(repr, plugins))}: in step {step.number} of task {step.task.name!r} a loss uses a "
        "tensor of an earlier step, whose graph was freed or changed. Detach stored tensors: self.features = "
        "step.features.detach().",
        plugin=plugins[0] if len(plugins) == 1 else None,
        hook="compatkit_losses",
    )


def _uses_old_graph(hook: Bound, step: Step) -> bool:
    """Return whether a plugin's losses of a step depend on a freed or changed graph of another step."""
    step_nodes = set(_nodes([step.features, *([] if step.logits is None else [step.logits]), *step.views]))
    try:
        with torch.enable_grad(), step.precision.autocast():
            loss_nodes = list(_nodes(list(hook.function(step).values())))
    except Exception:  # it cannot be called twice in a step: undecided
        return False
    return any(_is_unusable(node) for node in loss_nodes if node not in step_nodes)


def _nodes(tensors: Sequence[Tensor]) -> Iterator[Node]:
    visited: set[Node] = set()
    stack = [tensor.grad_fn for tensor in tensors]
    while stack:
        node = stack.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            stack.extend(following for following, _ in node.next_functions)


def _is_unusable(node: Node) -> bool:
    """Return whether the saved tensors of a node were freed, or changed in place."""
    for name in dir(node):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        try:
            getattr(node, name)
        except RuntimeError as error:
            if FREED_GRAPH in str(error) or CHANGED_IN_PLACE in str(error):
                return True
    return False


def _module_of(error: RuntimeError, parts: dict[str, nn.Module]) -> str | None:
    """Return the path of the innermost submodule that raised the error; None if it is a part itself."""
    names = {id(module): name for part in parts.values() for name, module in part.named_modules()}
    callers = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((names[id(module)] for module in reversed(callers) if names.get(id(module))), None)
