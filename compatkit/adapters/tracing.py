"""Cut after a module: trace the modules above it with torch.fx and keep every other module whole.

Tracing freezes whatever the traced code asks of ``self.training``, so it is done in train and in eval mode, and
a part runs the graph of its own mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import fx, nn
from torch.fx.node import map_arg

from compatkit.adapters.ownership import Side, owners
from compatkit.adapters.parts import Graphs, assemble, used_by
from compatkit.errors import CutError


def cut_traced(whole: nn.Module, split: str, image: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Return extractor (up to and with module ``split``) and head.

    Raises:
        CutError: The module is called several times or never, another value crosses, a parameter is used on
            both sides, or the modules above it cannot be traced.
    """
    del image  # nothing is run
    before = set(whole.__dict__)
    try:
        left_train, right_train = _split(_trace(whole, split, True), whole, split)
        left_eval, right_eval = _split(_trace(whole, split, False), whole, split)
        graphs: dict[Side, Graphs] = {
            "extractor": (left_train, left_eval),
            "head": (right_train, right_eval),
        }
        sides = owners(whole, {side: used_by(whole, pair) for side, pair in graphs.items()}, split)
        extractor, head = (assemble(whole, graphs[side], side, sides) for side in ("extractor", "head"))
        return extractor, head
    finally:
        # The tracer leaves constants that it met on the root.
        for name in set(whole.__dict__) - before:
            delattr(whole, name)


class _AncestorTracer(fx.Tracer):
    """Traces the modules above the cut module and calls all others."""

    def __init__(self, split: str) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self.ancestors = {split[:i] for i, letter in enumerate(split) if letter == "."}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.ancestors

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        # One image; every other argument keeps its default, which a placeholder would hide from `is None`.
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


def _trace(whole: nn.Module, split: str, training: bool) -> fx.Graph:
    modes = [(module, module.training) for module in whole.modules()]
    for module, _ in modes:
        module.training = training
    try:
        return _AncestorTracer(split).trace(whole)
    except Exception as error:  # tracing runs foreign code, which may raise anything
        raise CutError(
            f"{type(whole).__name__} cannot be traced down to {split!r}: {error}. Its code branches on values; split "
            "at 'forward_features' or at a module further up.",
            subject=split,
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode


def _split(graph: fx.Graph, whole: nn.Module, split: str) -> Graphs:
    """Return the graph up to the cut module's output and the graph from there on."""
    target = whole.get_submodule(split)
    calls = [n for n in graph.nodes if n.op == "call_module" and whole.get_submodule(str(n.target)) is target]
    if len(calls) != 1:
        raise CutError(
            f"{split!r} is called {len(calls)} times in a forward pass of {type(whole).__name__}; a split point is "
            "called exactly once. Split at the module around it or at 'forward_features'.",
            subject=split,
        )
    at, image = calls[0], next(n for n in graph.nodes if n.op == "placeholder")
    late, from_image = _reached(graph, at), _reached(graph, image)
    output = next(n for n in graph.nodes if n.op == "output")
    if output not in late:
        raise CutError(
            f"The output of {type(whole).__name__} does not depend on {split!r}; split at another module.",
            subject=split,
        )
    needed = _ancestors(late, stop=at) - {at}
    direct = [
        n for n in graph.nodes if n in needed - late and n in from_image | {image} and late & set(n.users)
    ]
    if direct:
        raise CutError(
            f"More than the output of {split!r} crosses the split point of {type(whole).__name__}: "
            f"{'; '.join(map(_describe, direct))}. A cut passes one tensor; split at the module around it, at a block "
            "boundary or at 'forward_features'.",
            subject=split,
        )
    # What hangs on the image but leads nowhere stays: checks of its size.
    early = {image, at} | (from_image - late)
    extractor, head = fx.Graph(), fx.Graph()
    _copy(graph, early | _ancestors(early), at, {}, extractor)
    entry = head.placeholder("x")
    if _works_in_place(whole, at):
        entry = head.call_method("clone", (entry,))
    _copy(graph, needed | late, output.args[0], {at: entry}, head)
    return extractor, head


def _reached(graph: fx.Graph, start: fx.Node) -> set[fx.Node]:
    """Return all nodes that depend on ``start``, without it."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if any(n is start or n in found for n in node.all_input_nodes):
            found.add(node)
    return found


def _ancestors(nodes: Iterable[fx.Node], stop: fx.Node | None = None) -> set[fx.Node]:
    """Return all nodes that these depend on, looking no further than ``stop``."""
    found: set[fx.Node] = set()
    waiting = [n for node in nodes for n in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes if node is not stop else ())
    return found


def _copy(
    graph: fx.Graph, wanted: set[fx.Node], result: Any, copies: dict[fx.Node, fx.Node], made: fx.Graph
) -> None:
    """Add the wanted nodes to ``made`` in their order; ``copies`` holds those that have one already."""
    for node in graph.nodes:
        if node in wanted and node not in copies and node.op != "output":
            copies[node] = made.node_copy(node, lambda n: copies[n])
    made.output(map_arg(result, lambda n: copies[n]))
    made.lint()


def _works_in_place(whole: nn.Module, at: fx.Node) -> bool:
    """Whether an operation right after the cut visibly works in place, so that the head must take a copy.

    Features are given to several heads; none may change them.
    """
    for user in at.users:
        if user.op == "call_module":
            if getattr(whole.get_submodule(str(user.target)), "inplace", False):
                return True
        elif (
            user.kwargs.get("inplace") or _name(user).endswith("_") or _name(user) in ("iadd", "imul", "isub")
        ):
            return True
    return False


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _describe(node: fx.Node) -> str:
    if node.op == "placeholder":
        return "the image itself"
    if node.op == "call_module":
        return f"the output of {node.target}"
    source = node.args[0] if node.args else None
    if _name(node) == "size" or (_name(node) == "getattr" and node.args[1] == "shape"):
        return "a size taken before it"
    if _name(node) == "getitem" and isinstance(source, fx.Node):
        inner = _describe(source)
        return inner if inner.startswith("a size") else f"item {node.args[1]} of {inner}"
    return f"the result of {_name(node)}"
