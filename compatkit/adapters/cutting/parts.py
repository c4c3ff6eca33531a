"""Parts made of graphs: a network's own modules under their own names, and a graph for each mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from compatkit.adapters.cutting.ownership import Part, state_of
from compatkit.adapters.cutting.tracing import attribute
from compatkit.errors import CutError, UsageError

Graphs = tuple[fx.Graph, fx.Graph]
"""For train mode, for eval mode."""
_FUNCTIONS: dict[tuple[Any, ...], Callable[..., Tensor]] = {}
"""By their code and the functions that it calls; what a function holds on to is torch's, never a network's."""


class _Unpickled:
    """Rides along in a part: copies share it, and pickle is told how else a part is saved."""

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

    def __init__(self, whole: nn.Module, port_names: tuple[str, ...]) -> None:
        super().__init__()
        self.port_names = port_names
        self.num_prefix_tokens = int(getattr(whole, "num_prefix_tokens", 0))
        self.num_patches = getattr(getattr(whole, "patch_embed", None), "num_patches", None)
        self._unpickled = _Unpickled()
        self._run_train: Callable[..., Tensor] = _not_compiled
        self._run_eval: Callable[..., Tensor] = _not_compiled

    def forward(self, x: Tensor | Sequence[Tensor]) -> Any:
        """Images to features, or features to logits; several features are one tuple."""
        run = self._run_train if self.training else self._run_eval
        return run(self, x) if isinstance(x, Tensor) else run(self, *x)


def used_by(whole: nn.Module, graphs: Graphs) -> set[int]:
    """Return the ids of the parameters and buffers that the graphs' modules hold."""
    found: set[int] = set()
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_module":
                found.update(
                    id(tensor) for tensor in state_of(whole.get_submodule(str(node.target))).values()
                )
            elif node.op == "get_attr":
                found.add(id(attribute(whole, str(node.target))))
    return found


def assemble(
    whole: nn.Module, graphs: Graphs, side: Part, sides: Mapping[str, Part], names: tuple[str, ...]
) -> TracedPart:
    """Return the part with the modules that its graphs call and all other state of its side."""
    part = TracedPart(whole, names)
    nodes = [node for graph in graphs for node in graph.nodes]
    modules = {str(node.target) for node in nodes if node.op == "call_module"}
    for path, module in whole.named_modules(remove_duplicate=False):
        if path in modules:
            _container(part, path).add_module(path.rpartition(".")[2], module)
    kept = {name for name, owner in sides.items() if owner == side}
    direct = {str(node.target) for node in nodes if node.op == "get_attr"}
    for name in [*state_of(whole), *sorted(direct - set(sides))]:
        inside = any(name.startswith(f"{path}.") for path in modules)
        if not inside and (name in kept or name in direct):
            _place(part, whole, name)
    part._run_train, part._run_eval = (_compiled(part, graph) for graph in graphs)
    part.training = whole.training
    return part


def _container(part: nn.Module, path: str) -> nn.Module:
    """Return the module that holds ``path``, made empty where it is not there."""
    holder = part
    for name in path.split(".")[:-1]:
        if name not in holder._modules:
            holder.add_module(name, nn.Module())
        holder = holder.get_submodule(name)
    return holder


def _place(part: nn.Module, whole: nn.Module, name: str) -> None:
    """Register one parameter, buffer or constant of the whole network in a part, under its own name."""
    path, _, last = name.rpartition(".")
    holder, source, value = _container(part, name), whole.get_submodule(path), attribute(whole, name)
    if isinstance(value, nn.Parameter):
        holder.register_parameter(last, value)
    elif isinstance(value, Tensor):
        stored = last in source._buffers and last not in source._non_persistent_buffers_set
        holder.register_buffer(last, value, persistent=stored)
    else:
        setattr(holder, last, value)


def _compiled(part: nn.Module, graph: fx.Graph) -> Callable[..., Tensor]:
    """Return the graph as a function of (part, input); the part's modules are looked up at each call.

    Equal graphs give the same function, by which torch.compile knows what it has compiled: for the next seed too.
    """
    made = type(fx.GraphModule(part, graph)).forward
    known = {name: id(value) for name, value in made.__globals__.items() if name != "__builtins__"}
    return _FUNCTIONS.setdefault((made.__code__, *sorted(known.items())), made)


def _not_compiled(*_: Any) -> Tensor:
    raise CutError("This part has no graph; build it with compatkit.adapters.blueprints.build.")
