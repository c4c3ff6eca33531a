"""Trace the modules above a cut with torch.fx; all other modules are leaves.

A trace fixes branches on ``self.training``, so a network is traced in train and in eval mode, and a part runs the graph
of its own mode. With ``images`` every operation is computed while it is traced, so that code may unpack, count or
branch on values that depend on the image size alone.
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

from compatkit.adapters.cutting.proof import restored_modes
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

NO_GRADIENTS = "it disables gradients for a part of its code, which a trace does not reproduce"


@attrs.frozen(eq=False)
class Traced:
    """A traced forward pass.

    Attributes:
        graph: Graph of the whole pass.
        cut_call: Call of the cut module.
        image: Placeholder.
        values: Value of every node for the images of the trace; empty for a trace without images.
        from_values: Nodes that depend on the image's values, not only on its size.
        fixed_size: Whether tracing fixed a number that depends on the image size.
        fixed_size_late: Whether that happened after the cut module.
    """

    graph: fx.Graph
    cut_call: fx.Node
    image: fx.Node
    values: dict[fx.Node, Any]
    from_values: set[fx.Node]
    fixed_size: bool
    fixed_size_late: bool


def trace(whole: nn.Module, cut: str, training: bool, images: Tensor | None = None) -> Traced:
    """Trace a network in one mode down to the cut module.

    Args:
        whole: Network; its modes are restored, but with ``images`` its buffers may change.
        cut: Path of the cut module.
        training: Whether to trace in train mode.
        images: Images (N, channels, height, width) to compute every operation with; None to compute nothing.

    Raises:
        CutError: The code cannot be traced or assigns buffers, or the module is not called exactly once.
    """
    tracer = _Tracer(cut) if images is None else _EvaluatingTracer(cut, images)
    generators, registered = _generators(), RegisteredTensors.of(whole)
    try:
        # Code that branches on enabled gradients is traced as in training.
        with restored_modes(whole), torch.enable_grad():
            for module in whole.modules():
                if module.training is not training:
                    module.training = training
            graph = tracer.trace(whole)
        if _generators() != generators:
            raise TraceError("it draws random numbers outside operations on the image")
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
            f"{cut!r} is called {len(calls)} times in a forward pass of {type(whole).__name__}; a cut module must be "
            "called exactly once. Split at the module around it or at 'forward_features'.",
            subject=cut,
        )
    image = next(n for n in graph.nodes if n.op == "placeholder")
    if isinstance(tracer, _EvaluatingTracer):
        return Traced(
            graph,
            calls[0],
            image,
            tracer.values,
            tracer.from_values,
            tracer.fixed_size,
            tracer.fixed_size_late,
        )
    return Traced(graph, calls[0], image, {}, set(), False, False)


class _Tracer(fx.Tracer):
    """Tracer of the modules above the cut module; all others are leaves."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self.cut = cut
        self.ancestors = {cut[:i] for i, letter in enumerate(cut) if letter == "."}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return module_qualified_name not in self.ancestors

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Proxy:
        # A tracer with values allows operations that need no gradient.
        if not torch.is_grad_enabled() and kind in ("call_module", "get_attr") and type(self) is _Tracer:
            raise TraceError(NO_GRADIENTS)
        return super().create_proxy(kind, target, *args, **kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        # Arguments other than the image keep their defaults: a placeholder would make `is None` false.
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


class _EvaluatingTracer(_Tracer):
    """Tracer that computes every node, so that code may use numbers that depend on sizes only."""

    def __init__(self, cut: str, images: Tensor) -> None:
        super().__init__(cut)
        self.images = images
        self.values: dict[fx.Node, Any] = {}
        self.from_image: set[fx.Node] = set()
        """Nodes that depend on the image, sizes included."""
        self.from_values: set[fx.Node] = set()
        """Nodes that depend on the image's values, not only on its size."""
        self.from_state: set[fx.Node] = set()
        """Nodes that depend on the network's parameters and buffers."""
        self.fixed_size = False
        self.fixed_size_late = False
        self.after_cut = False
        self.computing = False

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Proxy:
        proxy = super().create_proxy(kind, target, *args, **kwargs)
        node = proxy.node
        inputs = node.all_input_nodes
        if kind == "placeholder" or any(n in self.from_image for n in inputs):
            self.from_image.add(node)
        if kind == "placeholder" or (any(n in self.from_values for n in inputs) and not _is_size(node)):
            self.from_values.add(node)
        stateful = kind in ("get_attr", "call_module") or any(
            n in self.from_state or n.op == "get_attr" for n in inputs
        )
        if stateful and not _is_size(node):
            self.from_state.add(node)
        if not torch.is_grad_enabled() and (node in self.from_values or node in self.from_state):
            raise TraceError(NO_GRADIENTS)
        if kind == "call_module":
            self.after_cut |= self.root.get_submodule(str(target)) is self.root.get_submodule(self.cut)
        if kind != "output":
            self.values[node] = self.images if kind == "placeholder" else self._value(node)
        return proxy

    def _value(self, node: fx.Node) -> Any:
        """Compute a node; generators are restored, so that draws outside nodes are detected."""
        torch_state, python_state, numpy_state = (
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state(),
        )
        self.computing = True
        try:
            with torch.no_grad():
                return compute(self.root, node, self.values)
        finally:
            self.computing = False
            torch.set_rng_state(torch_state)
            random.setstate(python_state)
            np.random.set_state(numpy_state)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _ValueProxy(node, self)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return forward(*args, **kwargs) if self.computing else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: Any) -> bool:
        return bool(self.number(obj.node))

    def iter(self, obj: Any) -> Iterator[Any]:
        return iter([obj[index] for index in range(len(self.values[obj.node]))])

    def number(self, node: fx.Node) -> Any:
        """Return the value of a node as a plain number.

        Raises:
            TraceError: The value depends on the image's values, or on weights, which may change.
        """
        if node in self.from_values:
            raise TraceError("a branch or a number depends on the image's values")
        if node in self.from_state:
            raise TraceError("a branch or a number depends on the network's own parameters or buffers")
        self.fixed_size |= node in self.from_image
        self.fixed_size_late |= self.after_cut and node in self.from_image
        return self.values[node]


class _ValueProxy(fx.Proxy):
    """Proxy with a length, and with a number if that depends on sizes only."""

    def __len__(self) -> int:
        return len(self.tracer.values[self.node])  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return int(self.tracer.number(self.node))  # type: ignore[attr-defined]

    def __index__(self) -> int:
        return self.__int__()

    def __float__(self) -> float:
        return float(self.tracer.number(self.node))  # type: ignore[attr-defined]


def compute(whole: nn.Module, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """Return the value of a node for these values of its inputs.

    Args:
        whole: Traced network.
        node: Node of its graph, no placeholder.
        values: Value of each node computed so far.
    """

    def value_of(argument: fx.Node) -> Any:
        # The tracer creates nodes for constant tensors itself.
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
    """Return arguments with plain lists and dicts; those of torch.fx are immutable."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_plain, value)) if type(value) is not torch.Size else value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def attribute(module: nn.Module, path: str) -> Any:
    """Return the attribute at a dotted path.

    Args:
        module: Root of the path.
        path: Names joined by dots.
    """
    return operator.attrgetter(path)(module)


def name_of(node: fx.Node) -> str:
    """Return the name of the function, method or module that a node calls."""
    return str(getattr(node.target, "__name__", node.target))


def _generators() -> tuple[bytes, Any, bytes]:
    """Return the state of all random generators that traced code may draw from."""
    arrays: Any = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        arrays[1].tobytes() + bytes([arrays[2] % 256]),
    )


def _is_size(node: fx.Node) -> bool:
    """Return whether a node reads only the size, dtype or device of a tensor."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in SIZES
    return node.op == "call_method" and node.target in SIZES


def frontier(traced: Traced) -> list[fx.Node]:
    """Return the early nodes that depend on the image and are used late, in the order of the trace."""
    late, from_image = set(late_nodes(traced)), reached(traced.graph, traced.image) | {traced.image}
    return [node for node in early_nodes(traced) if node in from_image and late & set(node.users)]


def early_nodes(traced: Traced) -> list[fx.Node]:
    """Return the nodes up to the call of the cut module, in the order of the trace."""
    nodes = list(traced.graph.nodes)
    return nodes[: nodes.index(traced.cut_call) + 1]


def late_nodes(traced: Traced) -> list[fx.Node]:
    """Return the nodes after the cut that the result, a module call or an in-place change needs."""
    nodes = list(traced.graph.nodes)
    after = nodes[nodes.index(traced.cut_call) + 1 :]
    effective = [n for n in after if n.op in ("output", "call_module") or changes_in_place(n)]
    wanted = ancestors(effective) | set(effective)
    return [node for node in after if node in wanted and node.op != "output"] + [
        n for n in after if n.op == "output"
    ]


def reached(graph: fx.Graph, start: fx.Node) -> set[fx.Node]:
    """Return all nodes that depend on ``start``, without ``start``.

    Args:
        graph: Graph with nodes in the order of execution.
        start: Node of this graph.
    """
    nodes: set[fx.Node] = set()
    for node in graph.nodes:
        if any(n is start or n in nodes for n in node.all_input_nodes):
            nodes.add(node)
    return nodes


def ancestors(nodes: Iterable[fx.Node], stop: frozenset[fx.Node] = frozenset()) -> set[fx.Node]:
    """Return all nodes that these depend on, not beyond ``stop``.

    Args:
        nodes: Start nodes; in the result only if other start nodes depend on them.
        stop: Nodes whose inputs are not visited.
    """
    visited: set[fx.Node] = set()
    waiting = [n for node in nodes for n in node.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node not in visited:
            visited.add(node)
            waiting.extend(node.all_input_nodes if node not in stop else ())
    return visited


def changes_in_place(node: fx.Node) -> bool:
    """Return whether a node visibly changes a tensor in place."""
    return node.op in ("call_function", "call_method") and name_of(node).rstrip("_") + "_" == name_of(node)
