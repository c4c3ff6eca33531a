"""Cut a network in two after a module, with the approach named in the blueprint.

- ``"canonical"``: timm's own cut, ``forward_features`` | ``forward_head``, without tracing.
- ``"fx"``: one tensor crosses and nothing else. Only the modules above the cut module are traced.
- ``"declared"``: several tensors cross, or numbers derived from sizes. The network runs while it is traced.
- ``"stopped"``: the code before the cut branches on the image size. The extractor is the network itself, stopped at the
  cut module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
from torch import fx, nn

from compatkit.adapters.cutting.crossing import Crossing, declared_crossing, plain_crossing
from compatkit.adapters.cutting.ownership import Part, owners, state_of
from compatkit.adapters.cutting.parts import Graphs, TracedSide, graphs_of, used_by
from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.pruned import StoppedSide, canonical_sides
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.cutting.tracing import Traced, ancestors, late_nodes, trace
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError, UnknownName, near

CANONICAL = "forward_features"

Sides = Mapping[Part, Callable[[nn.Module], nn.Module]]
"""Function by part: network to part. It refers to modules and tensors by name, so it works for any network that is
built in the same way."""


def traced_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> Sides:
    """Cut after a module with a trace of the modules above it, without running the network.

    Args:
        whole: Network; its tensors and modes are restored.
        cut: Dotted path of the cut module.
        image: Unused; part of the signature of every approach.

    Returns:
        Functions from a network to its extractor and its head.

    Raises:
        CutError: The module is called several times or never, another value crosses, a parameter is used on
            both sides, or the modules above it cannot be traced.
    """
    del image
    with _restored_attributes(whole) as restore:
        traces = []
        for training in (True, False):
            traces.append(trace(whole, cut, training))
            restore()
        return _sides(whole, cut, traces, [plain_crossing(whole, trace) for trace in traces])


def declared_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> Sides:
    """Cut after a module with a trace that runs the network, where several tensors or numbers cross.

    Args:
        whole: Network; its tensors and modes are restored.
        cut: Dotted path of the cut module.
        image: Channels, height and width of the images to trace with.

    Returns:
        Functions from a network to its extractor and its head.

    Raises:
        CutError: As for ``traced_sides``; or too many tensors cross.
    """
    with _restored_attributes(whole) as restore:
        traces, crossings = _trace_declared(whole, cut, image, restore)
        return _sides(whole, cut, traces, crossings)


def stopped_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> Sides:
    """Cut after a module where code before the cut branches on the image size and code after it does not.

    ``planning`` verifies the parts at other image sizes.

    Args:
        whole: Network; its tensors and modes are restored.
        cut: Dotted path of the cut module.
        image: Channels, height and width of the images to trace with.

    Returns:
        Functions from a network to its extractor and its head.

    Raises:
        CutError: As for ``declared_sides``; or no code before the cut branches, code after it does, or more than the
            module's own output crosses.
    """
    with _restored_attributes(whole) as restore:
        traces, crossings = _trace_declared(whole, cut, image, restore)
        own_output = all(
            leaf.node is trace.cut_call
            for trace, crossing in zip(traces, crossings, strict=True)
            for leaf in crossing.leaves
        )
        fixed_head = any(crossing.fixed_size for crossing in crossings) or any(
            trace.fixed_size_late for trace in traces
        )
        if not own_output or fixed_head or not any(trace.fixed_size for trace in traces):
            raise CutError(
                f"The cut after {cut!r} of {type(whole).__name__} cannot be made by stopping the network there: the "
                "code before it must branch on the image size, the code after it must not, and the module's own output "
                "alone must cross."
            )
        free = [attrs.evolve(trace, fixed_size=False) for trace in traces]
        head = _sides(whole, cut, free, crossings)["head"]
        in_head = {id(tensor) for tensor in state_of(head(whole)).values()}
        sides: dict[str, Part] = {
            name: "head" if id(tensor) in in_head else "extractor" for name, tensor in state_of(whole).items()
        }
        return {"extractor": StoppedSide(cut, sides, crossings[1].names), "head": head}


def _trace_declared(
    whole: nn.Module, cut: str, image: tuple[int, ...], restore: Callable[[], None]
) -> tuple[list[Traced], list[Crossing]]:
    """Return the traces in train and eval mode with their crossings."""
    traces = []
    with restored_state(whole):
        for training in (True, False):
            traces.append(trace(whole, cut, training, signal((2, *image))))
            restore()
        crossings = [declared_crossing(whole, trace, frozenset()) for trace in traces]
        shared = [_shared_calls(whole, *pair) for pair in zip(traces, crossings, strict=True)]
        if any(shared):
            crossings = [declared_crossing(whole, *pair) for pair in zip(traces, shared, strict=True)]
    if crossings[0].names != crossings[1].names:
        raise CutError(
            f"Different values cross {cut!r} of {type(whole).__name__} in train mode, {crossings[0].names}, and in "
            f"eval mode, {crossings[1].names}. Split at a block boundary or at 'forward_features'.",
            subject=cut,
        )
    return traces, crossings


@contextmanager
def _restored_attributes(whole: nn.Module) -> Iterator[Callable[[], None]]:
    """Restore every module's attributes on exit, as traced code may store proxies in them.

    Yields:
        Function that restores them between two traces; it keeps the constants that the tracer puts on the root.
    """
    before = [(module, dict(vars(module))) for module in whole.modules()]

    def restore(constants: bool = True) -> None:
        for module, attributes in before:
            current = vars(module)
            for name in [name for name in current if name not in attributes]:
                if not (constants and name.startswith("_tensor_constant")):
                    del current[name]
            current.update(
                (name, value) for name, value in attributes.items() if current.get(name) is not value
            )

    try:
        yield restore
    finally:
        restore(constants=False)


APPROACHES: dict[str, Callable[[nn.Module, str, tuple[int, ...]], Sides]] = {
    "fx": traced_sides,
    "stopped": stopped_sides,
    "declared": declared_sides,
    "canonical": canonical_sides,
}
"""Function by approach: (network, cut, image shape (channels, height, width)) to ``Sides``."""


def _sides(whole: nn.Module, cut: str, traces: list[Traced], crossings: list[Crossing]) -> Sides:
    """Return both sides from the traces in train and in eval mode."""
    train, evaluate = (
        graphs_of(whole, trace, crossing) for trace, crossing in zip(traces, crossings, strict=True)
    )
    graphs: dict[Part, Graphs] = {"extractor": (train[0], evaluate[0]), "head": (train[1], evaluate[1])}
    sides = owners(whole, {side: used_by(whole, pair) for side, pair in graphs.items()}, cut)
    return {
        side: TracedSide.of(whole, pair, side, sides, crossings[1].names) for side, pair in graphs.items()
    }


def _shared_calls(whole: nn.Module, traced: Traced, crossing: Crossing) -> frozenset[fx.Node]:
    """Return early module calls that the head would repeat with parameters that the extractor uses too."""
    late = set(late_nodes(traced)) | crossing.recomputed
    crossed = frozenset(leaf.node for leaf in crossing.leaves) | {node for node, _ in crossing.scalars}
    repeated = (ancestors(late, crossed) | late) - crossed
    early = [n for n in traced.graph.nodes if n not in late and n.op == "call_module"]
    tensors = {n: {id(t) for t in state_of(whole.get_submodule(str(n.target))).values()} for n in early}
    left = ancestors([leaf.node for leaf in crossing.leaves]) | {leaf.node for leaf in crossing.leaves}
    used = set[int]().union(*(tensors[n] for n in early if n in left))
    return frozenset(n for n in early if n in repeated and tensors[n] & used)


def approaches_for(cut: str) -> tuple[str, ...]:
    """Return the approaches that a cut is tried with, in order."""
    return ("canonical",) if cut == CANONICAL else ("fx", "stopped", "declared")


def image_of(blueprint: Blueprint) -> tuple[int, int, int]:
    """Return channels, height and width of the images of a blueprint's cut."""
    return channels_of(blueprint), *blueprint.traced_size


def channels_of(blueprint: Blueprint) -> int:
    """Return the number of image channels; default: 3."""
    return int(blueprint.kwargs.get("in_chans", 3))


def sides_of(whole: nn.Module, cut: str, approach: str, image: tuple[int, ...]) -> Sides:
    """Return the functions that make extractor and head from a network.

    The parts hold the network's own modules, parameters and keys: training a part trains the network too. Every
    parameter and buffer belongs to exactly one part; unused ones go to the side where they are registered.

    Args:
        whole: Network; it is not changed.
        cut: Module path, or ``"forward_features"``.
        approach: Key of ``APPROACHES``.
        image: (channels, height, width) of an image that the network takes.

    Raises:
        UnknownName: No such approach, or no such module.
        CutError: More than one tensor crosses, or the module is not called exactly once.
    """
    if approach not in APPROACHES:
        raise UnknownName(
            f"Unknown approach {approach!r}; known are {', '.join(APPROACHES)}. The component was made by another "
            "version of compatkit.",
            subject=approach,
        )
    if approach == "canonical":
        if not (hasattr(whole, "forward_features") and hasattr(whole, "forward_head")):
            raise CutError(
                f"{type(whole).__name__} has no forward_features and forward_head; name a module path as cut.",
                subject=cut,
            )
    elif cut not in dict(whole.named_modules()) or not cut:
        raise UnknownName(_unknown_cut(whole, cut), subject=cut)
    return APPROACHES[approach](whole, cut, image)


def _unknown_cut(whole: nn.Module, cut: str) -> str:
    """Return the message for a cut that is no module of the network."""
    paths = [CANONICAL, *(name for name, _ in whole.named_modules() if name)]
    close = near(cut, paths, 3, 0.5)
    short = [path for path in paths if path.count(".") == 0]
    known = f"top-level modules are {', '.join(short)}. `compatkit cuts MODEL` lists all cuts."
    hint = f"did you mean {' or '.join(close)}?" if close else known
    return f"{type(whole).__name__} has no module {cut!r} to cut after; {hint}"
