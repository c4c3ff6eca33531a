"""Trace the modules above a cut with torch.fx; every other module stays whole.

Tracing freezes whatever the traced code asks of ``self.training``, so it is done in train and in eval mode, and
a part runs the graph of its own mode. With ``images`` every operation is also computed as it is traced, so that
code may unpack, count or branch on what depends on the image's size alone. The functions at the end say what comes
before the cut in a trace, what comes after it, and what depends on what.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError

from compatkit.adapters.cutting.proof import modes_kept
from compatkit.adapters.cutting.sideeffects import RegisteredTensors
from compatkit.errors import CutError

SIZES = frozenset(
    {
        "shape",
        "size",
        "dim",
        "ndim",
        "ndimension",
        "numel",
        "nelement",
        "device",
        "dtype",
        "is_floating_point",
    }
)
"""Attributes and methods of a tensor that do not depend on its values."""

NO_GRADIENTS = "it runs without gradients in between, which a trace does not keep"


@attrs.frozen(eq=False)
class Traced:
    """A traced forward pass.

    Attributes:
        at: The call of the cut module.
        image: The placeholder.
        values: What every node gave for the images of the trace; empty for a trace without images.
        reads: Nodes whose value depends on the image's values, not only on its size.
        frozen: Whether a number that follows the image's size was fixed while tracing.
        frozen_late: Whether that happened behind the cut module.
    """

    graph: fx.Graph
    at: fx.Node
    image: fx.Node
    values: dict[fx.Node, Any]
    reads: set[fx.Node]
    frozen: bool
    frozen_late: bool


def trace(whole: nn.Module, cut: str, training: bool, images: Tensor | None = None) -> Traced:
    """Trace ``whole`` in one mode down to the module ``split``.

    Args:
        whole: Its modes are as before afterwards; with ``images`` its buffers may move.
        cut: Path of the cut module.
        training: The mode.
        images: Computed along where given, in the mode that is traced.

    Raises:
        CutError: The code cannot be traced or assigns buffers, or the module is not called exactly once.
    """
    tracer = _Tracer(cut) if images is None else _Computing(cut, images)
    drawn, registered = _generators(), RegisteredTensors.of(whole)
    try:
        # Code that asks whether gradients are wanted is traced as in training.
        with modes_kept(whole), torch.enable_grad():
            for module in whole.modules():
                module.training = training
            graph = tracer.trace(whole)
        if _generators() != drawn:
            raise TraceError("it draws random numbers that no operation on the image shows")
    except Exception as error:  # tracing runs foreign code, which may raise anything
        registered.check(whole)
        raise CutError(
            f"{type(whole).__name__} cannot be traced down to {cut!r}: {error}. Split at "
            "'forward_features' or at a module further up.",
            subject=cut,
        ) from error
    registered.check(whole)
    target = whole.get_submodule(cut)
    calls = [n for n in graph.nodes if n.op == "call_module" and whole.get_submodule(str(n.target)) is target]
    if len(calls) != 1:
        raise CutError(
            f"{cut!r} is called {len(calls)} times in a forward pass of {type(whole).__name__}; a cut is "
            "called exactly once. Split at the module around it or at 'forward_features'.",
            subject=cut,
        )
    image = next(n for n in graph.nodes if n.op == "placeholder")
    if isinstance(tracer, _Computing):
        return Traced(graph, calls[0], image, tracer.values, tracer.reads, tracer.frozen, tracer.frozen_late)
    return Traced(graph, calls[0], image, {}, set(), False, False)


class _Tracer(fx.Tracer):
    """Traces the modules above the cut module and calls all others."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self.cut = cut
        self.ancestors = {cut[:i] for i, letter in enumerate(cut) if letter == "."}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.ancestors

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Proxy:
        # What computes along can tell harmless operations apart.
        if not torch.is_grad_enabled() and kind in ("call_module", "get_attr") and type(self) is _Tracer:
            raise TraceError(NO_GRADIENTS)
        return super().create_proxy(kind, target, *args, **kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        # One image; every other argument keeps its default, which a placeholder would hide from `is None`.
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


class _Computing(_Tracer):
    """Computes every node when it is made, so that code may ask for what depends on sizes only."""

    def __init__(self, cut: str, images: Tensor) -> None:
        super().__init__(cut)
        self.images = images
        self.values: dict[fx.Node, Any] = {}
        self.looks: set[fx.Node] = set()
        """Nodes whose value depends on the image, sizes included."""
        self.reads: set[fx.Node] = set()
        """Nodes whose value depends on the image's values, not only on its size."""
        self.owns: set[fx.Node] = set()
        """Nodes whose value depends on the network's own parameters and buffers."""
        self.frozen = False
        self.frozen_late = False
        self.passed = False
        self.running = False

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Proxy:
        proxy = super().create_proxy(kind, target, *args, **kwargs)
        node = proxy.node
        inputs = node.all_input_nodes
        if kind == "placeholder" or any(n in self.looks for n in inputs):
            self.looks.add(node)
        if kind == "placeholder" or (any(n in self.reads for n in inputs) and not _asks_size(node)):
            self.reads.add(node)
        own = kind in ("get_attr", "call_module") or any(n in self.owns or n.op == "get_attr" for n in inputs)
        if own and not _asks_size(node):
            self.owns.add(node)
        if not torch.is_grad_enabled() and (node in self.reads or node in self.owns):
            raise TraceError(NO_GRADIENTS)
        if kind == "call_module":
            self.passed |= self.root.get_submodule(str(target)) is self.root.get_submodule(self.cut)
        if kind != "output":
            self.values[node] = self.images if kind == "placeholder" else self._value(node)
        return proxy

    def _value(self, node: fx.Node) -> Any:
        """Compute a node; generators are as before afterwards, so that code which draws by itself is seen."""
        state, plain, arrays = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self.running = True
        try:
            with torch.no_grad():
                return compute(self.root, node, self.values)
        finally:
            self.running = False
            torch.set_rng_state(state)
            random.setstate(plain)
            np.random.set_state(arrays)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Known(node, self)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return forward(*args, **kwargs) if self.running else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: Any) -> bool:
        return bool(self.number(obj.node))

    def iter(self, obj: Any) -> Iterator[Any]:
        return iter([obj[index] for index in range(len(self.values[obj.node]))])

    def number(self, node: fx.Node) -> Any:
        """Return the value of a node that code wants as a plain number.

        Raises:
            TraceError: It depends on the image's values, or on weights, which may change.
        """
        if node in self.reads:
            raise TraceError("a branch or a number depends on the image's values")
        if node in self.owns:
            raise TraceError("a branch or a number depends on the network's own parameters or buffers")
        self.frozen |= node in self.looks
        self.frozen_late |= self.passed and node in self.looks
        return self.values[node]


class _Known(fx.Proxy):
    """A proxy that gives its length, and its number where that follows from sizes."""

    def __len__(self) -> int:
        return len(self.tracer.values[self.node])  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return int(self.tracer.number(self.node))  # type: ignore[attr-defined]

    def __index__(self) -> int:
        return self.__int__()

    def __float__(self) -> float:
        return float(self.tracer.number(self.node))  # type: ignore[attr-defined]


def compute(whole: nn.Module, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Return what a node gives where its inputs have these values.

    Args:
        whole: The traced network.
        node: Of its graph, no placeholder.
        values: Value of each node computed so far.
    """

    def value_of(argument: fx.Node) -> Any:
        # The tracer makes nodes for constant tensors by itself.
        return values[argument] if argument in values else attribute(whole, str(argument.target))

    args, kwargs = _plain(map_arg((node.args, node.kwargs), value_of))
    if node.op == "call_function":
        return node.target(*args, **kwargs)  # type: ignore[operator]
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if node.op == "call_module":
        return whole.get_submodule(str(node.target))(*args, **kwargs)
    return attribute(whole, str(node.target))


def _plain(value: Any) -> Any:
    """Return arguments as code would give them: torch.fx's own lists refuse to be changed."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_plain, value)) if type(value) is not torch.Size else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def attribute(module: nn.Module, path: str) -> Any:
    """Return what stands at a dotted path below a module.

    Args:
        module: Where the path begins.
        path: Names joined by dots.
    """
    return operator.attrgetter(path)(module)


def name_of(node: fx.Node) -> str:
    """Return the plain name of what a node calls."""
    return str(getattr(node.target, "__name__", node.target))


def _generators() -> tuple[bytes, Any, bytes]:
    """Return the state of all random generators that traced code may draw from."""
    arrays: Any = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        arrays[1].tobytes() + bytes([arrays[2] % 256]),
    )


def _asks_size(node: fx.Node) -> bool:
    """Return whether a node reads only the size, type or place of a tensor."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in SIZES
    return node.op == "call_method" and node.target in SIZES


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
    """Return all nodes that depend on ``start``, without it.

    Args:
        graph: Nodes in the order of execution.
        start: Of this graph.
    """
    nodes: set[fx.Node] = set()
    for node in graph.nodes:
        if any(n is start or n in nodes for n in node.all_input_nodes):
            nodes.add(node)
    return nodes


def ancestors(nodes: Iterable[fx.Node], stop: frozenset[fx.Node] = frozenset()) -> set[fx.Node]:
    """Return all nodes that these depend on, looking no further than ``stop``.

    Args:
        nodes: Where to begin; they are not in the result unless others depend on them.
        stop: Nodes that are returned, but whose inputs are not followed.
    """
    visited: set[fx.Node] = set()
    waiting = [n for node in nodes for n in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            waiting.extend(node.all_input_nodes if node not in stop else ())
    return visited


def acts(node: fx.Node) -> bool:
    """Return whether a node visibly changes a tensor in place."""
    return node.op in ("call_function", "call_method") and name_of(node).rstrip("_") + "_" == name_of(node)
