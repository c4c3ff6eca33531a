"""Explain errors of torch in a step: a graph kept from an earlier one, or a network that cannot run in a precision."""

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
"""Messages of torch about a graph that was used before, and about one whose weights have changed since."""
DTYPES = ("dtype", "BFloat16", "bfloat16", "Half")
"""Words in torch's messages about mismatched number types."""


@contextmanager
def explaining(step: Step, losses: Sequence[Bound]) -> Iterator[None]:
    """Replace an error of torch by one that names its cause, where that is known.

    Args:
        step: Whose forward or backward pass follows.
        losses: Regularizers that are active in it; they are called again to find the one that kept a graph.

    Raises:
        PluginError: A loss reaches a graph of an earlier step.
        TrainingError: The network cannot run in the precision of the run.
    """
    try:
        yield
    except RuntimeError as error:
        if better := _explained(error, step, losses):
            raise better from error
        raise


def without_gradient(step: Step) -> UsageError:
    """Return the error for a step whose loss has no gradient."""
    task = step.task
    lacks = "head of its own" if task.supervised else "labels"
    reason = f"it has no {lacks}, and no active regularizer has a loss that trains its extractor."
    if task.runs_head:
        reason = "its network is frozen, and no active regularizer trains a shared head."
    return UsageError(
        f"In step {step.number} task {task.name!r} has a loss without any gradient: {reason}",
        subject=task.name,
    )


def _explained(error: RuntimeError, step: Step, losses: Sequence[Bound]) -> CompatkitError | None:
    if losses and (FREED in str(error) or MOVED in str(error)):
        keeping = [bound.instance for bound in losses if _keeps_graph(bound, step)]
        if not keeping and FREED in str(error):
            keeping = [bound.instance for bound in losses]
        return _kept_graph(keeping, step) if keeping else None
    if step.precision.dtype != "float32" and any(word in str(error) for word in DTYPES):
        module = _module_of(error, {"extractor": step.task.extractor, "head": step.task.head})
        return TrainingError(
            f"Step {step.number} of task {step.task.name!r} cannot run in {step.precision.dtype}"
            f"{f', in its module {module!r}' if module else ''}: {str(error).splitlines()[0]}. Set "
            "Trainer(precision='float32'), or convert in forward what it writes to its buffers: x.to(buffer.dtype).",
            subject=module or step.task.name,
        )
    return None


def _kept_graph(keeping: Sequence[str], step: Step) -> PluginError:
    return PluginError(
        f"Plugin {' or '.join(map(repr, keeping))}: in step {step.number} of task {step.task.name!r} a loss uses a "
        "tensor of an earlier step whose graph is gone. Detach what is kept: self.features = step.features.detach().",
        plugin=keeping[0] if len(keeping) == 1 else None,
        hook="compatkit_losses",
    )


def _keeps_graph(bound: Bound, step: Step) -> bool:
    """Return whether a plugin's losses of a step reach a graph that is spent and is not that of this step."""
    own = set(_nodes([step.features, *([] if step.logits is None else [step.logits]), *step.views]))
    try:
        with torch.enable_grad(), step.precision.autocast():
            reached = list(_nodes(list(bound.function(step).values())))
    except Exception:  # a hook that cannot be called twice in a step is named with the others
        return False
    return any(_spent(node) for node in reached if node not in own)


def _nodes(tensors: Sequence[Tensor]) -> Iterator[Node]:
    seen: set[Node] = set()
    waiting = [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting.extend(following for following, _ in node.next_functions)


def _spent(node: Node) -> bool:
    """Return whether what a node saved for the backward pass is gone, or was changed since."""
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
