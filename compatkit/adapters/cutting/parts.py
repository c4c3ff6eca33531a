"""Build both parts from a trace: the network's modules under their own names and a graph for each mode.

A ``TracedSide`` refers to modules and tensors by name, so it builds the part of any network from the same blueprint
without tracing again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from compatkit.adapters.cutting.crossing import AxisSize, Crossing, Path, at_path
from compatkit.adapters.cutting.ownership import Part, state_of
from compatkit.adapters.cutting.tracing import (
    Traced,
    ancestors,
    attribute,
    changes_in_place,
    early_nodes,
    late_nodes,
    name_of,
    reached,
)
from compatkit.errors import CutError, UsageError

Graphs = tuple[fx.Graph, fx.Graph]
"""Graphs for train and eval mode."""
Run = Callable[..., Any]
"""A graph as a function of (part, inputs...); the part's modules are looked up at each call."""
_FUNCTIONS: dict[tuple[Any, ...], Run] = {}
"""Compiled graphs by their code and the functions that it calls; they hold no tensors of a network."""


class _PickleGuard:
    """Attribute of a part that refuses pickling and names the alternative; copies of the part share it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _PickleGuard:
        return self

    def __reduce__(self) -> str:
        raise UsageError(
            "Parts cannot be saved by pickle or torch.save(module), as opening such a file runs code. Call "
            "registry.export(reference, 'part.safetensors') instead; compatkit.load_exported('part.safetensors') loads "
            "it without a registry. For the weights alone call torch.save(module.state_dict(), 'weights.pt')."
        )


class TracedPart(nn.Module):
    """One side of a traced network.

    Attributes:
        num_prefix_tokens: Number of class and register tokens of the whole network.
        num_patches: Number of patch tokens of the whole network; None without patches.
        port_names: Names of the tensors that cross, in order.
    """

    def __init__(self, whole: nn.Module, port_names: tuple[str, ...], runs: tuple[Run, Run]) -> None:
        super().__init__()
        self.port_names = port_names
        self.num_prefix_tokens = int(getattr(whole, "num_prefix_tokens", 0))
        self.num_patches = getattr(getattr(whole, "patch_embed", None), "num_patches", None)
        self._pickle_guard = _PickleGuard()
        self._run_train, self._run_eval = runs
        self.training = whole.training

    def forward(self, x: Tensor | Sequence[Tensor]) -> Any:
        """Return features of images, or logits of features.

        Args:
            x: Images (N, channels, height, width), or features; several features are one tuple.
        """
        run = self._run_train if self.training else self._run_eval
        return run(self, x) if isinstance(x, Tensor) else run(self, *x)


@attrs.frozen(eq=False)
class TracedSide:
    """Builder of one part from a network of the traced blueprint.

    Attributes:
        modules: Paths of the modules that the graphs call, in the network's order.
        tensors: Names of the parameters and buffers outside these modules.
        constants: Values that the traced code created, by their names in the graphs.
        names: Names of the tensors that cross, in order.
        runs: Graphs for train and eval mode, as functions.
    """

    modules: tuple[str, ...]
    tensors: tuple[str, ...]
    constants: Mapping[str, Any]
    names: tuple[str, ...]
    runs: tuple[Run, Run]

    @classmethod
    def of(
        cls, whole: nn.Module, graphs: Graphs, side: Part, sides: Mapping[str, Part], names: tuple[str, ...]
    ) -> TracedSide:
        """Find the modules that the graphs call and all other state of the side.

        Args:
            whole: Traced network.
            graphs: Graphs of this side, for train and eval mode.
            side: ``"extractor"`` or ``"head"``.
            sides: Side of each parameter and buffer, by name.
            names: Names of the tensors that cross, in order.
        """
        nodes = [node for graph in graphs for node in graph.nodes]
        called = {str(node.target) for node in nodes if node.op == "call_module"}
        direct = {str(node.target) for node in nodes if node.op == "get_attr"}
        wanted = {name for name, owner in sides.items() if owner == side} | direct
        tensors = [
            name
            for name in state_of(whole)
            if name in wanted and not any(name.startswith(f"{path}.") for path in called)
        ]
        return cls(
            tuple(path for path, _ in whole.named_modules(remove_duplicate=False) if path in called),
            tuple(tensors),
            {name: attribute(whole, name) for name in sorted(direct - set(sides))},
            names,
            (compiled(whole, graphs[0]), compiled(whole, graphs[1])),
        )

    def __call__(self, whole: nn.Module) -> nn.Module:
        """Return the part of a network; it holds the network's own modules and tensors."""
        part = TracedPart(whole, self.names, self.runs)
        for path in self.modules:
            _container(part, path).add_module(path.rpartition(".")[2], whole.get_submodule(path))
        for name in self.tensors:
            path, _, last = name.rpartition(".")
            parent, source, value = _container(part, name), whole.get_submodule(path), attribute(whole, name)
            if isinstance(value, nn.Parameter):
                parent.register_parameter(last, value)
            else:
                parent.register_buffer(last, value, last not in source._non_persistent_buffers_set)
        for name, value in self.constants.items():
            parent, last = _container(part, name), name.rpartition(".")[2]
            if isinstance(value, Tensor):
                parent.register_buffer(last, value.clone(), persistent=False)
            else:
                setattr(parent, last, value)
        return part


def graphs_of(whole: nn.Module, traced: Traced, crossing: Crossing) -> tuple[fx.Graph, fx.Graph]:
    """Return the graphs of extractor and head for the traced mode.

    Args:
        whole: Traced network.
        traced: Trace in one mode.
        crossing: Values that cross in this mode.
    """
    early, late = early_nodes(traced), late_nodes(traced)
    from_image = reached(traced.graph, traced.image) | {traced.image}
    # Unused nodes that depend on the image stay, such as checks of its size; so do changes of buffers in place.
    wanted_early = {
        node for node in early if node in from_image or changes_in_place(node)
    } - crossing.recomputed
    wanted_early |= {leaf.node for leaf in crossing.leaves}
    extractor, head = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, Any] = {}
    _copy(traced.graph, wanted_early | ancestors(wanted_early), copies, extractor)
    if traced.fixed_size:
        shape = tuple(traced.values[traced.image].shape[1:])
        with extractor.inserting_after(copies[traced.image]):
            extractor.call_function(require_shape, (copies[traced.image], shape))
    outputs = tuple(_take(extractor, copies[leaf.node], leaf.path) for leaf in crossing.leaves)
    extractor.output(outputs[0] if len(outputs) == 1 else outputs)
    copies = _add_inputs(whole, traced, crossing, head)
    crossed = frozenset(copies)
    wanted = set(late) | crossing.recomputed
    result = late[-1].args[0]
    _copy(traced.graph, (wanted | ancestors(wanted, crossed)) - crossed, copies, head)
    head.output(map_arg(result, lambda n: copies[n]))
    for graph in (extractor, head):
        graph.lint()
    return extractor, head


def require_shape(x: Tensor, shape: tuple[int, ...]) -> None:
    """Check the input of a part that was cut for one image size.

    Args:
        x: Input tensor, batch first.
        shape: Expected shape of one image, without the batch axis.

    Raises:
        CutError: The shape differs.
    """
    if tuple(x.shape[1:]) != tuple(shape):
        raise CutError(
            f"This part was cut for one image size: it takes {tuple(shape)} after the batch axis, got "
            f"{tuple(x.shape[1:])}. The network fixes numbers that depend on the image size; cut it again for another."
        )


def used_by(whole: nn.Module, graphs: Graphs) -> set[int]:
    """Return the ids of the parameters and buffers that the graphs use.

    Args:
        whole: Traced network.
        graphs: Graphs of one side.
    """
    ids: set[int] = set()
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_module":
                ids.update(id(tensor) for tensor in state_of(whole.get_submodule(str(node.target))).values())
            elif node.op == "get_attr":
                ids.add(id(attribute(whole, str(node.target))))
    return ids


def _add_inputs(whole: nn.Module, traced: Traced, crossing: Crossing, head: fx.Graph) -> dict[fx.Node, Any]:
    """Add the head's inputs; return the replacement of each crossing node."""
    inputs = [head.placeholder("x" if index == 0 else f"x{index}") for index in range(len(crossing.leaves))]
    if crossing.fixed_size or traced.fixed_size:
        for placeholder, leaf in zip(inputs, crossing.leaves, strict=True):
            shape = tuple(at_path(traced.values[leaf.node], leaf.path).shape[1:])
            head.call_function(require_shape, (placeholder, shape))
    replacements: dict[fx.Node, dict[Path, Any]] = {leaf.node: {} for leaf in crossing.leaves}
    for placeholder, leaf in zip(inputs, crossing.leaves, strict=True):
        in_place = _works_in_place(whole, leaf.node)
        replacements[leaf.node][leaf.path] = (
            head.call_method("clone", (placeholder,)) if in_place else placeholder
        )
    for (node, path), value in crossing.scalars.items():
        if isinstance(value, AxisSize):
            sizes = head.call_function(getattr, (inputs[value.leaf], "shape"))
            value = head.call_function(operator.getitem, (sizes, value.axis))
        replacements.setdefault(node, {})[path] = value
    return {node: _replace(traced.values.get(node), by_path, ()) for node, by_path in replacements.items()}


def _replace(value: Any, replacements: Mapping[Path, Any], path: Path) -> Any:
    """Return nested lists, tuples and mappings with the values at these paths replaced."""
    if path in replacements:
        return replacements[path]
    if isinstance(value, Mapping):
        return {key: _replace(item, replacements, (*path, key)) for key, item in value.items()}
    items = [_replace(item, replacements, (*path, index)) for index, item in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def _take(graph: fx.Graph, node: fx.Node, path: Path) -> fx.Node:
    for step in path:
        node = graph.call_function(operator.getitem, (node, step))
    return node


def _copy(graph: fx.Graph, wanted: set[fx.Node], copies: dict[fx.Node, Any], target: fx.Graph) -> None:
    """Copy the wanted nodes to another graph in order, except those that are already in ``copies``."""
    for node in graph.nodes:
        if node in wanted and node not in copies and node.op != "output":
            copies[node] = target.node_copy(node, lambda n: copies[n])


def _works_in_place(whole: nn.Module, node: fx.Node) -> bool:
    """Return whether an operation on a crossing node visibly works in place.

    The head then copies its input, as several heads may share it.
    """
    for user in node.users:
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


def _container(part: nn.Module, path: str) -> nn.Module:
    """Return the parent module of a path; missing modules are added empty."""
    parent = part
    for name in path.split(".")[:-1]:
        if name not in parent._modules:
            parent.add_module(name, nn.Module())
        parent = parent.get_submodule(name)
    return parent


def compiled(whole: nn.Module, graph: fx.Graph) -> Run:
    """Return the graph as a function of (part, inputs...).

    Equal graphs give the same function, so torch.compile reuses its result.

    Args:
        whole: Traced network.
        graph: Graph of one side and one mode.
    """
    forward = type(fx.GraphModule(whole, graph)).forward
    graph.owning_module = None  # it would keep the network's tensors
    ids = {name: id(value) for name, value in forward.__globals__.items() if name != "__builtins__"}
    return _FUNCTIONS.setdefault((forward.__code__, *sorted(ids.items())), forward)
