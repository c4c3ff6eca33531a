"""What comes before a cut in a trace, what after, and what depends on what."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from compatkit.adapters.cutting.tracing import Traced, name_of


def frontier(traced: Traced) -> list[fx.Node]:
    """Return the early nodes that hang on the image and are used late, in the order of the trace."""
    late, from_image = set(late_nodes(traced)), reached(traced.graph, traced.image) | {traced.image}
    return [node for node in early_nodes(traced) if node in from_image and late & set(node.users)]


def early_nodes(traced: Traced) -> list[fx.Node]:
    """Return the nodes up to the call of the cut module, in the order of the trace."""
    nodes = list(traced.graph.nodes)
    return nodes[: nodes.index(traced.at) + 1]


def late_nodes(traced: Traced) -> list[fx.Node]:
    """Return the nodes after the cut that the result, a module call or a change in place needs."""
    nodes = list(traced.graph.nodes)
    after = nodes[nodes.index(traced.at) + 1 :]
    acting = [n for n in after if n.op in ("output", "call_module") or acts(n)]
    wanted = ancestors(acting) | set(acting)
    return [node for node in after if node in wanted and node.op != "output"] + [
        n for n in after if n.op == "output"
    ]


def reached(graph: fx.Graph, start: fx.Node) -> set[fx.Node]:
    """Return all nodes that depend on ``start``, without it."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if any(n is start or n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def ancestors(nodes: Iterable[fx.Node], stop: frozenset[fx.Node] = frozenset()) -> set[fx.Node]:
    """Return all nodes that these depend on, looking no further than ``stop``."""
    found: set[fx.Node] = set()
    waiting = [n for node in nodes for n in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes if node not in stop else ())
    return found


def acts(node: fx.Node) -> bool:
    """Whether a node visibly changes a tensor in place."""
    return node.op in ("call_function", "call_method") and name_of(node).rstrip("_") + "_" == name_of(node)
