"""Find the tensors that the extractor passes to the head, and the sources of all other values that the head needs.

A value computed before the cut and used after it either crosses as a tensor or is computed again in the head: from the
network's own buffers, from the sizes of the crossing tensors, or as a constant if the image size is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import MappingKey, SequenceKey, tree_flatten_with_path, tree_leaves

from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.cutting.tracing import (
    Traced,
    compute,
    early_nodes,
    frontier,
    late_nodes,
    name_of,
    reached,
)
from compatkit.errors import CutError

MAX_TENSORS = 8
"""Tensors that cross, at most."""

OTHER_SIZES = ((1, 3), (13, 7), (32, 64), (96, 160))
"""Pixels added to height and width to find values that depend on the image size; sizes that fail are skipped."""

Path = tuple[Any, ...]


@attrs.frozen(eq=False)
class Leaf:
    """A tensor that crosses: its node, and its path inside the node's output."""

    node: fx.Node
    path: Path
    name: str


@attrs.frozen
class AxisSize:
    """Length of an axis of a crossing tensor."""

    leaf: int
    axis: int


@attrs.frozen(eq=False)
class Crossing:
    """Values that pass from the early to the late part of a trace.

    Attributes:
        leaves: Tensors that cross, in order; those of the cut module come first.
        scalars: Other values that the late part uses, by node and path: a constant or an ``AxisSize``.
        recomputed: Early nodes that the head computes again.
        fixed_size: Whether a number used by the head is valid for the traced image size only.
    """

    leaves: tuple[Leaf, ...]
    scalars: Mapping[tuple[fx.Node, Path], Any]
    recomputed: frozenset[fx.Node]
    fixed_size: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the feature ports, in order."""
        return tuple(leaf.name for leaf in self.leaves)


def plain_crossing(whole: nn.Module, traced: Traced) -> Crossing:
    """Return the crossing of the cut module's output alone.

    Args:
        whole: Traced network, for messages.
        traced: Trace of the network.

    Raises:
        CutError: Other values cross; the message lists them.
    """
    others = [node for node in frontier(traced) if node is not traced.cut_call]
    if others:
        raise CutError(
            f"More than the output of {str(traced.cut_call.target)!r} crosses the cut of {type(whole).__name__}: "
            f"{'; '.join(map(_describe, others))}. A cut passes one tensor; split at the module around it, at a block "
            "boundary or at 'forward_features'.",
            subject=str(traced.cut_call.target),
        )
    return Crossing((Leaf(traced.cut_call, (), "features"),), {}, frozenset(), False)


def declared_crossing(whole: nn.Module, traced: Traced, extractor_only: frozenset[fx.Node]) -> Crossing:
    """Return the crossing of every tensor that the late part needs, with the sources of its numbers.

    Args:
        whole: Network, in the mode of the trace.
        traced: Trace with values, for two images.
        extractor_only: Early nodes whose parameters the extractor uses too, so that the head cannot compute them
            again.

    Raises:
        CutError: More than ``MAX_TENSORS`` tensors cross, or a value that is neither a tensor nor a number.
    """
    crossing, recomputed = _expand(traced, extractor_only)
    leaves = [leaf for node in crossing for leaf in _leaves(node, traced)]
    without_axes = [leaf.name for leaf in leaves if at_path(traced.values[leaf.node], leaf.path).ndim == 0]
    if without_axes:
        raise CutError(
            f"A tensor without axes crosses {str(traced.cut_call.target)!r} of {type(whole).__name__}: "
            f"{', '.join(without_axes)}. Features have at least 1 axis; split at another module.",
            subject=str(traced.cut_call.target),
        )
    if not leaves or len(leaves) > MAX_TENSORS:
        raise CutError(
            f"{len(leaves)} tensors cross the cut {str(traced.cut_call.target)!r} of {type(whole).__name__}: "
            f"{'; '.join(map(_describe, crossing[:MAX_TENSORS]))}{', ...' if len(crossing) > MAX_TENSORS else ''}. "
            f"At most {MAX_TENSORS} may cross; split at a block boundary or at 'forward_features'.",
            subject=str(traced.cut_call.target),
        )
    runs = [traced.values, *_other_runs(whole, traced)]
    scalars: dict[tuple[fx.Node, Path], Any] = {}
    fixed_size = False
    for node in crossing:
        for path, value in _flat(traced.values[node]):
            if not isinstance(value, Tensor):
                scalars[node, path], fixed = _scalar(node, path, leaves, runs)
                fixed_size |= fixed
    return Crossing(_number_names(leaves), scalars, recomputed, fixed_size)


def _expand(traced: Traced, extractor_only: frozenset[fx.Node]) -> tuple[list[fx.Node], frozenset[fx.Node]]:
    """Return the nodes that cross, and the early nodes that the head computes again from sizes and own buffers."""
    from_image = reached(traced.graph, traced.image) | {traced.image}
    recomputed: set[fx.Node] = set()
    expanded: dict[fx.Node, None] = {traced.cut_call: None}
    waiting = frontier(traced)
    while waiting:
        node = waiting.pop(0)
        from_size = node in from_image and node not in traced.from_values and node not in extractor_only
        if from_size and any(isinstance(leaf, Tensor) for leaf in tree_leaves(traced.values[node])):
            recomputed.add(node)
            waiting += [n for n in node.all_input_nodes if n in from_image]
        else:
            expanded[node] = None
    late = [*late_nodes(traced), *recomputed]
    used_late = [n for n in extractor_only if set(late) & set(n.users) and n not in expanded]
    return [*expanded, *used_late], frozenset(recomputed)


def _other_runs(whole: nn.Module, traced: Traced) -> Iterator[dict[fx.Node, Any]]:
    """Yield the early values for three images, then for images of other sizes that the network takes."""
    batch, channels, height, width = traced.values[traced.image].shape
    yield _run(whole, traced, signal((batch + 1, channels, height, width)))
    for tall, wide in OTHER_SIZES:
        try:
            yield _run(whole, traced, signal((batch, channels, height + tall, width + wide)))
        except Exception:  # foreign code refuses sizes in its own way
            continue


def _run(whole: nn.Module, traced: Traced, images: Tensor) -> dict[fx.Node, Any]:
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in early_nodes(traced):
            values[node] = images if node is traced.image else compute(whole, node, values)
    return values


def _scalar(
    node: fx.Node, path: Path, leaves: Sequence[Leaf], runs: Sequence[Mapping[fx.Node, Any]]
) -> tuple[Any, bool]:
    """Return an axis size or a constant for a value that is not a tensor, and whether it is valid for one size only.

    Raises:
        CutError: The value depends on the batch size and equals no axis size of a crossing tensor.
    """
    values = [at_path(run[node], path) for run in runs]
    if all(type(value) is type(values[0]) and value == values[0] for value in values):
        return values[0], False
    if all(type(value) is int for value in values):
        for index, leaf in enumerate(leaves):
            shapes = [at_path(run[leaf.node], leaf.path).shape for run in runs]
            for axis in range(len(shapes[0])):
                if [shape[axis] for shape in shapes] == values:
                    return AxisSize(index, axis), False
        if values[0] == values[1]:
            return values[0], True
    raise CutError(
        f"{_describe(node)} crosses the cut: for other images it is {values}, which is no axis of a tensor that "
        "crosses. Split at a block boundary or at 'forward_features'."
    )


def _leaves(node: fx.Node, traced: Traced) -> list[Leaf]:
    return [
        Leaf(node, path, _source(node, traced))
        for path, value in _flat(traced.values[node])
        if isinstance(value, Tensor)
    ]


def _flat(value: Any) -> list[tuple[Path, Any]]:
    """Return every value inside lists, tuples and mappings with its path."""
    leaves = tree_flatten_with_path(tuple(value) if isinstance(value, torch.Size) else value)[0]
    return [(tuple(_key(step) for step in path), leaf) for path, leaf in leaves]


def _key(step: Any) -> Any:
    if isinstance(step, SequenceKey):
        return step.idx
    if isinstance(step, MappingKey):
        return step.key
    raise CutError(f"A value that is no tensor, number, list or mapping crosses the cut: {step}.")


def at_path(value: Any, path: Path) -> Any:
    """Return the value at a path inside lists, tuples and mappings.

    Args:
        value: Nested lists, tuples and mappings.
        path: Indices and keys, outermost first.
    """
    for step in path:
        value = value[step]
    return value


def _source(node: fx.Node, traced: Traced) -> str:
    """Return a port's name: ``features`` for the output of the cut module, else the source module or operation."""
    if node is traced.cut_call:
        return "features"
    while (
        node.op != "call_module"
        and node.args
        and isinstance(node.args[0], fx.Node)
        and name_of(node) == "getitem"
    ):
        node = node.args[0]
    if node is traced.cut_call:
        return "features"
    return "image" if node is traced.image else str(node.target) if node.op == "call_module" else node.name


def _number_names(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Return the leaves with a number appended to every name that occurs more than once."""
    names = [leaf.name for leaf in leaves]
    return tuple(
        attrs.evolve(leaf, name=f"{leaf.name}.{names[:index].count(leaf.name)}")
        if names.count(leaf.name) > 1
        else leaf
        for index, leaf in enumerate(leaves)
    )


def _describe(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "the image itself"
    if node.op == "call_module":
        return f"the output of {node.target}"
    source = node.args[0] if node.args else None
    if name_of(node) == "size" or (name_of(node) == "getattr" and node.args[1] == "shape"):
        return "a size taken before it"
    if name_of(node) == "getitem" and isinstance(source, fx.Node):
        inner = _describe(source)
        return inner if inner.startswith("a size") else f"item {node.args[1]} of {inner}"
    return f"the result of {name_of(node)}"
