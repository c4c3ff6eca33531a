"""Explain errors of torch in a step: a graph of an earlier step, or a network that cannot run in a precision."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from compatkit.errors import CompatkitError, PluginError, TrainingError, UsageError
from compatkit.plugins.calls import Bound
from compatkit.training.step import Step

FREED, MOVED = "backward through the graph a second time", "modified by an inplace operation"
"""Messages of torch about a graph that was freed, and about one whose weights have changed since."""
DTYPES = ("dtype", "BFloat16", "bfloat16", "Half")
"""Words in torch's messages about mismatched dtypes."""


@contextmanager
def explained_errors(step: Step, losses: Sequence[Bound]) -> Iterator[None]:
    """Replace errors of torch in a block by errors that name the cause, if it is known.

    Args:
        step: Step of the forward or backward pass in the block.
        losses: Active regularizers of the step, which are called again to find the one that kept a graph.

    Raises:
        PluginError: A loss uses a graph of an earlier step.
        TrainingError: The network cannot run in the precision of the run.
    """
    try:
        yield
    except RuntimeError as error:
        if explained := _explain(error, step, losses):
            raise explained from error
        raise


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


def _explain(error: RuntimeError, step: Step, losses: Sequence[Bound]) -> CompatkitError | None:
    if losses and (FREED in str(error) or MOVED in str(error)):
        plugins = [bound.instance for bound in losses if _uses_old_graph(bound, step)]
        if not plugins and FREED in str(error):
            plugins = [bound.instance for bound in losses]
        return _old_graph_error(plugins, step) if plugins else None
    if step.precision.dtype != "float32" and any(word in str(error) for word in DTYPES):
        module = _module_of(error, {"extractor": step.task.extractor, "head": step.task.head})
        return TrainingError(
            f"Step {step.number} of task {step.task.name!r} cannot run in {step.precision.dtype}"
            f"{f', in its module {module!r}' if module else ''}: {str(error).splitlines()[0]}. Set "
            "Trainer(precision='float32'), or convert in forward what it writes to its buffers: x.to(buffer.dtype).",
            subject=module or step.task.name,
        )
    return None


def _old_graph_error(plugins: Sequence[str], step: Step) -> PluginError:
    return PluginError(
        f"Plugin {' or '.join(map(repr, plugins))}: in step {step.number} of task {step.task.name!r} a loss uses a "
        "tensor of an earlier step whose graph is gone. Detach stored tensors: self.features = "
        "step.features.detach().",
        plugin=plugins[0] if len(plugins) == 1 else None,
        hook="compatkit_losses",
    )


def _uses_old_graph(bound: Bound, step: Step) -> bool:
    """Return whether a plugin's losses of a step depend on a freed or changed graph of another step."""
    step_nodes = set(_nodes([step.features, *([] if step.logits is None else [step.logits]), *step.views]))
    try:
        with torch.enable_grad(), step.precision.autocast():
            loss_nodes = list(_nodes(list(bound.function(step).values())))
    except Exception:  # a hook that cannot be called twice in a step is named with the others
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
    """Return whether the saved tensors of a node were freed, or changed since."""
    for name in dir(node):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        try:
            getattr(node, name)
        except RuntimeError as error:
            if FREED in str(error) or MOVED in str(error):
                return True
    return False


def _module_of(error: RuntimeError, parts: dict[str, nn.Module]) -> str | None:
    """Return the path of the innermost module of the parts whose code raised the error."""
    names = {id(module): name for part in parts.values() for name, module in part.named_modules()}
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((names[id(module)] for module in reversed(frames) if names.get(id(module))), None)
