"""From a trace and what crosses to two graphs: the extractor's and the head's."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from compatkit.adapters.cutting.crossing import Crossing, Path, Side, at_path
from compatkit.adapters.cutting.dataflow import acts, ancestors, early_nodes, late_nodes, reached
from compatkit.adapters.cutting.tracing import Traced, name_of
from compatkit.errors import CutError


def graphs_of(whole: nn.Module, traced: Traced, crossing: Crossing) -> tuple[fx.Graph, fx.Graph]:
    """Return the extractor's graph and the head's, for the mode that was traced."""
    early, late = early_nodes(traced), late_nodes(traced)
    from_image = reached(traced.graph, traced.image) | {traced.image}
    # What hangs on the image but leads nowhere stays: checks of its size; and what changes buffers in place.
    kept = {node for node in early if node in from_image or acts(node)} - crossing.again
    kept |= {leaf.node for leaf in crossing.leaves}
    extractor, head = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, Any] = {}
    _copy(traced.graph, kept | ancestors(kept), copies, extractor)
    if traced.frozen:
        shape = tuple(traced.values[traced.image].shape[1:])
        with extractor.inserting_after(copies[traced.image]):
            extractor.call_function(require_shape, (copies[traced.image], shape))
    given = tuple(_take(extractor, copies[leaf.node], leaf.path) for leaf in crossing.leaves)
    extractor.output(given[0] if len(given) == 1 else given)
    copies = _entries(whole, traced, crossing, head)
    crossed = frozenset(copies)
    wanted = set(late) | crossing.again
    result = late[-1].args[0]
    _copy(traced.graph, (wanted | ancestors(wanted, crossed)) - crossed, copies, head)
    head.output(map_arg(result, lambda n: copies[n]))
    for graph in (extractor, head):
        graph.lint()
    return extractor, head


def require_shape(x: Tensor, shape: tuple[int, ...]) -> None:
    """Check the shape without the batch axis of what a part takes that was cut for one image size.

    Raises:
        CutError: It is another; the network uses numbers that hold for this size only.
    """
    if tuple(x.shape[1:]) != tuple(shape):
        raise CutError(
            f"This part was cut for one image size: it takes {tuple(shape)} behind the batch axis, got "
            f"{tuple(x.shape[1:])}. The network fixes numbers that follow the image's size; cut it again for another."
        )


def _entries(whole: nn.Module, traced: Traced, crossing: Crossing, head: fx.Graph) -> dict[fx.Node, Any]:
    """Add the head's inputs; return what stands there for every node whose value crosses."""
    inputs = [head.placeholder("x" if index == 0 else f"x{index}") for index in range(len(crossing.leaves))]
    if crossing.frozen or traced.frozen:
        for entry, leaf in zip(inputs, crossing.leaves, strict=True):
            shape = tuple(at_path(traced.values[leaf.node], leaf.path).shape[1:])
            head.call_function(require_shape, (entry, shape))
    places: dict[fx.Node, dict[Path, Any]] = {leaf.node: {} for leaf in crossing.leaves}
    for entry, leaf in zip(inputs, crossing.leaves, strict=True):
        copied = head.call_method("clone", (entry,)) if _works_in_place(whole, leaf.node) else entry
        places[leaf.node][leaf.path] = copied
    for (node, path), value in crossing.fixed.items():
        if isinstance(value, Side):
            sizes = head.call_function(getattr, (inputs[value.leaf], "shape"))
            value = head.call_function(operator.getitem, (sizes, value.axis))
        places.setdefault(node, {})[path] = value
    return {node: _rebuilt(traced.values.get(node), found, ()) for node, found in places.items()}


def _rebuilt(value: Any, found: Mapping[Path, Any], path: Path) -> Any:
    """Return the structure of ``value`` with what stands for its parts in the head."""
    if path in found:
        return found[path]
    if isinstance(value, Mapping):
        return {key: _rebuilt(one, found, (*path, key)) for key, one in value.items()}
    items = [_rebuilt(one, found, (*path, index)) for index, one in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def _take(graph: fx.Graph, node: fx.Node, path: Path) -> fx.Node:
    for step in path:
        node = graph.call_function(operator.getitem, (node, step))
    return node


def _copy(graph: fx.Graph, wanted: set[fx.Node], copies: dict[fx.Node, Any], made: fx.Graph) -> None:
    """Add the wanted nodes to ``made`` in their order; ``copies`` holds those that have one already."""
    for node in graph.nodes:
        if node in wanted and node not in copies and node.op != "output":
            copies[node] = made.node_copy(node, lambda n: copies[n])


def _works_in_place(whole: nn.Module, at: fx.Node) -> bool:
    """Whether an operation right after the cut visibly works in place, so that the head must take a copy.

    Features are given to several heads; none may change them.
    """
    for user in at.users:
        if user.op == "call_module":
            if getattr(whole.get_submodule(str(user.target)), "inplace", False):
                return True
        elif name_of(user) == "getitem" and _works_in_place(whole, user):
            return True
        elif (
            user.kwargs.get("inplace")
            or (name_of(user).endswith("_") and not name_of(user).endswith("__"))
            or name_of(user) in ("iadd", "imul", "isub")
        ):
            return True
    return False
