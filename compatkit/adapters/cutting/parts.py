"""From a trace and what crosses to both parts: the network's own modules under their own names, a graph for each mode.

A ``TracedSide`` says by names alone how one part is put together, so that it also builds the part of any other network
made from the same blueprint, without tracing again.
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
    acts,
    ancestors,
    attribute,
    early_nodes,
    late_nodes,
    name_of,
    reached,
)
from compatkit.errors import CutError, UsageError

Graphs = tuple[fx.Graph, fx.Graph]
"""For train mode, for eval mode."""
Run = Callable[..., Any]
"""A graph as a function of (part, inputs...); the part's modules are looked up at each call."""
_FUNCTIONS: dict[tuple[Any, ...], Run] = {}
"""By their code and the functions that it calls; what a function holds on to is torch's, never a network's."""


class _Unpickled:
    """Refuses pickling of the part that holds it and names the alternative; copies of the part share it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Unpickled:
        return self

    def __reduce__(self) -> str:
        raise UsageError(
            "Parts are not saved by pickle or torch.save(module), as opening such a file runs code. Call "
            "registry.export(reference, 'part.safetensors') instead; compatkit.load_exported('part.safetensors') loads "
            "it without a registry. For the weights alone call torch.save(module.state_dict(), 'weights.pt')."
        )


class TracedPart(nn.Module):
    """One side of a traced network.

    Attributes:
        num_prefix_tokens: Class and register tokens of the whole network, 0 where it has none.
        num_patches: Patch tokens of the whole network, None where it has no patches.
        port_names: Names of what crosses, in order.
    """

    def __init__(self, whole: nn.Module, port_names: tuple[str, ...], runs: tuple[Run, Run]) -> None:
        super().__init__()
        self.port_names = port_names
        self.num_prefix_tokens = int(getattr(whole, "num_prefix_tokens", 0))
        self.num_patches = getattr(getattr(whole, "patch_embed", None), "num_patches", None)
        self._unpickled = _Unpickled()
        self._run_train, self._run_eval = runs
        self.training = whole.training

    def forward(self, x: Tensor | Sequence[Tensor]) -> Any:
        """Images to features, or features to logits; several features are one tuple."""
        run = self._run_train if self.training else self._run_eval
        return run(self, x) if isinstance(x, Tensor) else run(self, *x)


@attrs.frozen(eq=False)
class TracedSide:
    """How one part is put together from a network of the blueprint that was traced.

    Attributes:
        modules: Paths of the modules that the graphs call, in the network's order.
        tensors: Names of the parameters and buffers outside these modules.
        constants: Values that the traced code created, by the name under which the graphs look them up.
        names: Names of what crosses, in order.
        runs: The graphs for train and for eval mode, as functions.
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
            whole: The network.
            graphs: Of this side, for train and eval mode.
            side: Which.
            sides: Side of each parameter and buffer, by name.
            names: Of the values that cross, in order.
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
        """Return the part of this network; it holds the network's own modules and tensors."""
        part = TracedPart(whole, self.names, self.runs)
        for path in self.modules:
            _container(part, path).add_module(path.rpartition(".")[2], whole.get_submodule(path))
        for name in self.tensors:
            path, _, last = name.rpartition(".")
            holder, source, value = _container(part, name), whole.get_submodule(path), attribute(whole, name)
            if isinstance(value, nn.Parameter):
                holder.register_parameter(last, value)
            else:
                holder.register_buffer(last, value, last not in source._non_persistent_buffers_set)
        for name, value in self.constants.items():
            holder, last = _container(part, name), name.rpartition(".")[2]
            if isinstance(value, Tensor):
                holder.register_buffer(last, value.clone(), persistent=False)
            else:
                setattr(holder, last, value)
        return part


def graphs_of(whole: nn.Module, traced: Traced, crossing: Crossing) -> tuple[fx.Graph, fx.Graph]:
    """Return the extractor's graph and the head's, for the mode that was traced.

    Args:
        whole: The traced network.
        traced: Its trace in one mode.
        crossing: What passes from the extractor to the head.
    """
    early, late = early_nodes(traced), late_nodes(traced)
    from_image = reached(traced.graph, traced.image) | {traced.image}
    # What depends on the image but leads nowhere stays, such as checks of its size; so do changes of buffers in place.
    wanted_early = {node for node in early if node in from_image or acts(node)} - crossing.again
    wanted_early |= {leaf.node for leaf in crossing.leaves}
    extractor, head = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, Any] = {}
    _copy(traced.graph, wanted_early | ancestors(wanted_early), copies, extractor)
    if traced.frozen:
        shape = tuple(traced.values[traced.image].shape[1:])
        with extractor.inserting_after(copies[traced.image]):
            extractor.call_function(require_shape, (copies[traced.image], shape))
    outputs = tuple(_take(extractor, copies[leaf.node], leaf.path) for leaf in crossing.leaves)
    extractor.output(outputs[0] if len(outputs) == 1 else outputs)
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
    """Check the input of a part that was cut for one image size; the batch axis may have any length.

    Args:
        x: Batch first.
        shape: Expected shape of one image, without the batch axis.

    Raises:
        CutError: The shape differs; the network uses numbers that hold for this size only.
    """
    if tuple(x.shape[1:]) != tuple(shape):
        raise CutError(
            f"This part was cut for one image size: it takes {tuple(shape)} behind the batch axis, got "
            f"{tuple(x.shape[1:])}. The network fixes numbers that follow the image's size; cut it again for another."
        )


def used_by(whole: nn.Module, graphs: Graphs) -> set[int]:
    """Return the ids of the parameters and buffers that the graphs' modules hold.

    Args:
        whole: The network that the graphs were traced from.
        graphs: Of one side.
    """
    ids: set[int] = set()
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_module":
                ids.update(id(tensor) for tensor in state_of(whole.get_submodule(str(node.target))).values())
            elif node.op == "get_attr":
                ids.add(id(attribute(whole, str(node.target))))
    return ids


def _entries(whole: nn.Module, traced: Traced, crossing: Crossing, head: fx.Graph) -> dict[fx.Node, Any]:
    """Add the head's inputs; return the replacement of each crossing node."""
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
        if isinstance(value, AxisSize):
            sizes = head.call_function(getattr, (inputs[value.leaf], "shape"))
            value = head.call_function(operator.getitem, (sizes, value.axis))
        places.setdefault(node, {})[path] = value
    return {
        node: _rebuilt(traced.values.get(node), replacements, ()) for node, replacements in places.items()
    }


def _rebuilt(value: Any, replacements: Mapping[Path, Any], path: Path) -> Any:
    """Return the structure of ``value`` with its parts replaced by those of the head."""
    if path in replacements:
        return replacements[path]
    if isinstance(value, Mapping):
        return {key: _rebuilt(item, replacements, (*path, key)) for key, item in value.items()}
    items = [_rebuilt(item, replacements, (*path, index)) for index, item in enumerate(value)]
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
    """Return whether an operation right after the cut visibly works in place, so that the head must take a copy.

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


def _container(part: nn.Module, path: str) -> nn.Module:
    """Return the module that holds ``path``, made empty where it is not there."""
    holder = part
    for name in path.split(".")[:-1]:
        if name not in holder._modules:
            holder.add_module(name, nn.Module())
        holder = holder.get_submodule(name)
    return holder


def compiled(whole: nn.Module, graph: fx.Graph) -> Run:
    """Return the graph as a function of (part, inputs...).

    Equal graphs give the same function, by which torch.compile knows what it has compiled: for the next seed too.

    Args:
        whole: The network that the graph was traced from.
        graph: Of one side and one mode.
    """
    made = type(fx.GraphModule(whole, graph)).forward
    graph.owning_module = None  # it would keep the network's tensors
    known = {name: id(value) for name, value in made.__globals__.items() if name != "__builtins__"}
    return _FUNCTIONS.setdefault((made.__code__, *sorted(known.items())), made)
