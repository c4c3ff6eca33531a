"""Cut a network in two behind a module; how it is done is named by the blueprint's ``approach``.

``"canonical"`` is timm's own cut, ``forward_features`` | ``forward_head``, without tracing. ``"fx"`` cuts after a
module that passes on one tensor and nothing else: only the modules above it are traced, all others stay whole.
``"declared"`` does the same where several tensors cross, or numbers that follow from sizes; it runs the network
while tracing, to learn what they are. ``"stopped"`` serves where the code before the cut branches on the image's
size: the extractor is the network itself, stopped at the cut module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
from torch import fx, nn

from compatkit.adapters.cutting.crossing import Crossing, declared_crossing, plain_crossing
from compatkit.adapters.cutting.ownership import Part, owners, state_of
from compatkit.adapters.cutting.parts import Graphs, TracedSide, graphs_of, used_by
from compatkit.adapters.cutting.proof import unchanged
from compatkit.adapters.cutting.pruned import StoppedSide, canonical_sides
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.cutting.tracing import Traced, ancestors, late_nodes, trace
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError, UnknownName, near

CANONICAL = "forward_features"

Sides = Mapping[Part, Callable[[nn.Module], nn.Module]]
"""How each part is made of a network: by the names of modules and tensors, so that it holds for any other network that
is built in the same way."""


def traced_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> Sides:
    """Cut behind the module ``split`` with a trace of the modules above it; nothing is run.

    Args:
        whole: The network; its tensors and modes are left as they are.
        cut: Dotted path of the module behind which to cut.
        image: Not used; every way of cutting takes it.

    Raises:
        CutError: The module is called several times or never, another value crosses, a parameter is used on
            both sides, or the modules above it cannot be traced.
    """
    del image
    with _cleared(whole) as restore:
        traces = []
        for training in (True, False):
            traces.append(trace(whole, cut, training))
            restore()
        return _sides(whole, cut, traces, [plain_crossing(whole, trace) for trace in traces])


def declared_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> Sides:
    """Cut where a tuple of tensors crosses, or numbers that follow from sizes.

    Args:
        whole: The network; its tensors and modes are left as they are.
        cut: Dotted path of the module behind which to cut.
        image: Channels, height and width of the images to trace with.

    Raises:
        CutError: As for ``traced_sides``; or more crosses than can be declared.
    """
    with _cleared(whole) as restore:
        traces, crossings = _declared(whole, cut, image, restore)
        return _sides(whole, cut, traces, crossings)


def stopped_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> Sides:
    """Cut where code before the cut branches on sizes and code behind it does not.

    Whether the parts serve other sizes must be tried; see ``planning``.

    Args:
        whole: The network; its tensors and modes are left as they are.
        cut: Dotted path of the module behind which to cut.
        image: Channels, height and width of the images to trace with.

    Raises:
        CutError: As for ``declared_sides``; or nothing branches, or more than the module's own output crosses.
    """
    with _cleared(whole) as restore:
        traces, crossings = _declared(whole, cut, image, restore)
        own = all(
            leaf.node is trace.at
            for trace, crossing in zip(traces, crossings, strict=True)
            for leaf in crossing.leaves
        )
        lasting = not any(crossing.frozen for crossing in crossings) and not any(
            trace.frozen_late for trace in traces
        )
        if not (own and lasting and any(trace.frozen for trace in traces)):
            raise CutError(
                f"{cut!r} of {type(whole).__name__} needs no extractor that runs all code up to it."
            )
        free = [attrs.evolve(trace, frozen=False) for trace in traces]
        head = _sides(whole, cut, free, crossings)["head"]
        in_head = {id(tensor) for tensor in state_of(head(whole)).values()}
        sides: dict[str, Part] = {
            name: "head" if id(tensor) in in_head else "extractor" for name, tensor in state_of(whole).items()
        }
        return {"extractor": StoppedSide(cut, sides, crossings[1].names), "head": head}


def _declared(
    whole: nn.Module, cut: str, image: tuple[int, ...], restore: Callable[[], None]
) -> tuple[list[Traced], list[Crossing]]:
    """Return the traces in train and eval mode, and what crosses in each."""
    traces = []
    with unchanged(whole):
        for training in (True, False):
            traces.append(trace(whole, cut, training, signal((2, *image))))
            restore()
        crossings = [declared_crossing(whole, trace, frozenset()) for trace in traces]
        barred = [_barred(whole, *pair) for pair in zip(traces, crossings, strict=True)]
        if any(barred):
            crossings = [declared_crossing(whole, *pair) for pair in zip(traces, barred, strict=True)]
    if crossings[0].names != crossings[1].names:
        raise CutError(
            f"Other values cross {cut!r} of {type(whole).__name__} in train mode, {crossings[0].names}, than in eval "
            f"mode, {crossings[1].names}. Split at a block boundary or at 'forward_features'.",
            subject=cut,
        )
    return traces, crossings


@contextmanager
def _cleared(whole: nn.Module) -> Iterator[Callable[[], None]]:
    """Restore every module's attributes on exit: traced code may have stored proxies in them.

    Yields a function that does so between two traces; it keeps the constants that the tracer puts on the root.
    """
    before = [(module, dict(vars(module))) for module in whole.modules()]

    def restore(constants: bool = True) -> None:
        for module, known in before:
            now = vars(module)
            for name in [name for name in now if name not in known]:
                if not (constants and name.startswith("_tensor_constant")):
                    del now[name]
            now.update((name, value) for name, value in known.items() if now.get(name) is not value)

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
"""By name: (whole network, cut, image shape (channels, height, width)) to how its parts are made."""


def _sides(whole: nn.Module, cut: str, traces: list[Traced], crossings: list[Crossing]) -> Sides:
    """Return both sides from the traces in train and in eval mode."""
    train, evaluate = (
        graphs_of(whole, trace, crossing) for trace, crossing in zip(traces, crossings, strict=True)
    )
    graphs: dict[Part, Graphs] = {"extractor": (train[0], evaluate[0]), "head": (train[1], evaluate[1])}
    owned = owners(whole, {side: used_by(whole, pair) for side, pair in graphs.items()}, cut)
    return {
        side: TracedSide.of(whole, pair, side, owned, crossings[1].names) for side, pair in graphs.items()
    }


def _barred(whole: nn.Module, traced: Traced, crossing: Crossing) -> frozenset[fx.Node]:
    """Return early module calls that the head would repeat with parameters that the extractor uses too."""
    late = set(late_nodes(traced)) | crossing.again
    crossed = frozenset(leaf.node for leaf in crossing.leaves) | {node for node, _ in crossing.fixed}
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
    """Return channels, height and width of the images that a blueprint was cut with."""
    return channels_of(blueprint), *blueprint.traced_size


def channels_of(blueprint: Blueprint) -> int:
    """Return the image channels; a blueprint names them wherever they are not 3."""
    return int(blueprint.kwargs.get("in_chans", 3))


def sides_of(whole: nn.Module, cut: str, approach: str, image: tuple[int, ...]) -> Sides:
    """Return how extractor and head are made of a network.

    The parts hold the whole network's own modules, parameters and keys: later training of a part trains it too. Every
    parameter and buffer belongs to exactly one part; what no part uses goes to the side it is registered on. Cutting
    changes nothing in ``whole``.

    Args:
        whole: The network.
        cut: A module path, or ``"forward_features"``.
        approach: A key of ``APPROACHES``.
        image: (channels, height, width) of an image that the network takes.

    Raises:
        UnknownName: No such approach, or no such module.
        CutError: More than one tensor crosses, or the module is not called exactly once.
    """
    if approach not in APPROACHES:
        raise UnknownName(
            f"No way to cut is called {approach!r}; known are {', '.join(APPROACHES)}. The component was made "
            "by another version of compatkit or needs a plugin.",
            subject=approach,
        )
    if approach == "canonical":
        if not (hasattr(whole, "forward_features") and hasattr(whole, "forward_head")):
            raise CutError(
                f"{type(whole).__name__} has no forward_features and forward_head; name a module path as cut.",
                subject=cut,
            )
    elif cut not in dict(whole.named_modules()) or not cut:
        raise UnknownName(unknown_split(whole, cut), subject=cut)
    return APPROACHES[approach](whole, cut, image)


def unknown_split(whole: nn.Module, cut: str) -> str:
    """Return the message for a cut that is no module of the network.

    Args:
        whole: The network.
        cut: What was asked for.
    """
    paths = [CANONICAL, *(name for name, _ in whole.named_modules() if name)]
    close = near(cut, paths, 3, 0.5)
    short = [path for path in paths if path.count(".") == 0]
    known = f"modules at the top are {', '.join(short)}. `compatkit cuts MODEL` lists all places to cut."
    hint = f"did you mean {' or '.join(close)}?" if close else known
    return f"{type(whole).__name__} has no module {cut!r} to cut after; {hint}"
