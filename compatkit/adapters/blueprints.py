"""Build parts from their blueprints alone, derive their ports, and check that they come back as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from torch import Tensor, nn

from compatkit.adapters.bounds import bounded_building, check_numbers
from compatkit.adapters.builders import whole_of
from compatkit.adapters.cutting.cache import remembered_sides
from compatkit.adapters.cutting.planning import channels_of
from compatkit.adapters.cutting.sideeffects import differing_state
from compatkit.adapters.fingerprint import observe, same_probe
from compatkit.adapters.initialization import seeded, without_draws
from compatkit.adapters.modelconfig import class_layer
from compatkit.adapters.ports.structure import extractor_structure, head_structure
from compatkit.adapters.stitching.layers import build_adapter
from compatkit.adapters.stitching.widths import Joined, entered, own_width, widened
from compatkit.adapters.weights import load_part, load_whole
from compatkit.contracts.contract import Blueprint, Contract, Port, Probe, Structural
from compatkit.errors import CutError, UsageError
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values


def build(
    blueprint: Blueprint,
    *,
    seed: int | None = None,
    state: Mapping[str, Tensor] | None = None,
    share: bool = False,
    bounded: bool = True,
) -> nn.Module:
    """Build one part alone; the rest of the network is dropped.

    Args:
        blueprint: Says what to build: one side of a network, or an adapter.
        seed: Draws the initial weights; the global random state stays as it is. None draws from the global state.
        state: Weights to load, all of them and no others; nothing is drawn then.
        share: Whether the part may keep the tensors of ``state`` themselves; else they are copied.
        bounded: Whether to bound what building costs; False where it was within the bounds before.

    Raises:
        UnknownName: The builder, model or approach is not known here.
        CutError: The cut does not work here, or the weights are of another module.
        TooCostly: With a state: building takes more than ``bounds`` allows.
    """
    if blueprint.side == "adapter":
        return build_adapter(blueprint, state)
    if state is None:
        with seeded(seed):
            return _part(whole_of(blueprint), blueprint)
    check_numbers(blueprint.model, blueprint.kwargs)
    with seeded(0), bounded_building(blueprint.model) if bounded else without_draws(constants=False):
        part = _part(whole_of(blueprint), blueprint)
    load_part(part, state, f"the {blueprint.side} of {blueprint.model} at {blueprint.cut!r}", share=share)
    return part


def build_pair(
    extractor: Blueprint,
    head: Blueprint,
    *,
    seed: int | None = None,
    weights: str | Path | Mapping[str, Tensor] | None = None,
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Build a whole network and its two parts, which hold the whole's own modules and parameters.

    Where the blueprints state a width, the whole is the two parts, one after the other: no builder makes it.

    Args:
        extractor: Blueprint of the extractor.
        head: Blueprint of the head of the same network.
        seed: As for ``build``; also draws what ``weights`` does not hold.
        weights: ``"pretrained"`` for the library's own weights, a path of a safetensors file, or a state dict; a
            class layer of another shape, or none, is left as drawn.

    Raises:
        UsageError: The blueprints are of different networks.
        CutError: The weights do not fit.
        IntegrityError: They hold values that no network can use.
        EnvironmentFailure: The weights could not be fetched or read.
    """
    if attrs.evolve(extractor, side="head") != attrs.evolve(head, side="head"):
        raise UsageError(
            f"A pair is cut from one network: the extractor is of {extractor.model} {dict(extractor.kwargs)} at "
            f"{extractor.cut!r}, the head of {head.model} {dict(head.kwargs)} at {head.cut!r}."
        )
    with seeded(seed):
        whole = whole_of(extractor, pretrained=weights == "pretrained")
        if weights == "pretrained":
            check_values(whole.state_dict(), f"Pretrained weights of {extractor.model}", UNUSABLE)
        elif weights is not None:
            load_whole(whole, weights, extractor.model)
        left, right = _parts(whole, extractor)
    return whole if extractor.width is None else Joined(left, right), left, right


def check_builds_again(
    owner: str, parts: Mapping[str, nn.Module], blueprints: Mapping[str, Blueprint], shape: Sequence[int]
) -> None:
    """Build parts anew from blueprints and weights, as publishing and loading do, before anything is trained.

    Args:
        owner: What the parts belong to, for messages.
        parts: By side, on the CPU, in eval mode; the second takes the output of the first.
        blueprints: By side.
        shape: Of the first part's input.

    Raises:
        CutError: As for ``check_rebuilt``.
    """
    shapes, dtypes = [tuple(shape)], ["float32"]
    for side, part in parts.items():
        run = observe(part, *shapes, dtypes=dtypes, bounded=False)
        _check_rebuilt(f"{owner}: the {side}", part, blueprints[side], run.probe, dtypes, early=True)
        shapes = [tuple(output.shape) for output in run.outputs]
        dtypes = [str(output.dtype).removeprefix("torch.") for output in run.outputs]


def check_rebuilt(owner: str, module: nn.Module, blueprint: Blueprint, contract: Contract) -> None:
    """Build a part anew, as loading does, and compare it with what its contract promises.

    Args:
        owner: What the part is called in messages.
        module: The part, with its weights, on the CPU.
        blueprint: Of the part.
        contract: Of the part; its probe decides. Without one, only the names and shapes of the weights do.

    Raises:
        CutError: The part is not rebuilt, gives other outputs, or gives random ones in eval mode; names the tensors or
            attributes outside the state dict that differ.
    """
    dtypes = [port.dtype for port in contract.structural.inputs]
    _check_rebuilt(owner, module, blueprint, contract.statistical.probe, dtypes)


def _check_rebuilt(
    owner: str,
    module: nn.Module,
    blueprint: Blueprint,
    promised: Probe | None,
    dtypes: Sequence[str],
    *,
    early: bool = False,
) -> None:
    """Compare a part with one built anew; before training, also buffers that no output of eval mode shows."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    again = build(blueprint, state=state, share=True)
    if promised is None:
        return
    run = observe(again, *promised.shapes, dtypes=dtypes, bounded=not early)
    if run.draws and not same_probe(
        run.probe, observe(again, *promised.shapes, dtypes=dtypes, seed=1, bounded=False).probe
    ):
        raise CutError(
            f"{owner} gives random outputs in eval mode, so that no contract can promise them; it is not kept. Draw "
            "random numbers only where self.training is set.",
            subject=owner,
        )
    names = list(differing_state(module, again))
    buffers = [name for name, _ in module.named_buffers() if early and name in names]
    same = same_probe(run.probe, promised)
    if buffers or not same:
        names = buffers or names
        fault = "has other buffers" if same else "gives other outputs on the probe input"
        holds = f"has another {', '.join(map(repr, names[:3]))}" if names else "holds state"
        raise CutError(
            f"{owner}, rebuilt from its blueprint and its weights, {fault}; it is not kept. It {holds} outside its "
            "state dict, draws random numbers when it is built, or was changed after its contract was derived. "
            "Register a persistent buffer, or compute it from the arguments of the network.",
            subject=names[0] if names else owner,
        )


def _parts(whole: nn.Module, blueprint: Blueprint) -> tuple[nn.Module, nn.Module]:
    """Cut a whole network as its blueprint says, to the width and with the entry layers that it states."""
    sides = remembered_sides(whole, blueprint)
    parts = sides["extractor"](whole), sides["head"](whole)
    extractor, head = widened(*parts, blueprint, channels_of(blueprint))
    return extractor, entered(head, blueprint)


def _part(whole: nn.Module, blueprint: Blueprint) -> nn.Module:
    """Cut one part out of a whole network as its blueprint says."""
    if blueprint.width is not None:  # to know the network's own width takes both
        return _parts(whole, blueprint)[blueprint.side == "head"]
    part = remembered_sides(whole, blueprint)["head" if blueprint.side == "head" else "extractor"](whole)
    return entered(part, blueprint) if blueprint.side == "head" else part


def own_width_of(blueprint: Blueprint) -> int:
    """Return how many channels cross in a network as it is, whatever width its blueprint states.

    Raises:
        CutError: No maps of channels before rows and columns cross, which a 1x1 convolution could bring to a width.
    """
    bare = attrs.evolve(blueprint, side="extractor", width=None)
    extractor = build(bare, seed=0)
    width = own_width(extractor, bare, channels_of(bare))
    (port,) = structural(extractor, bare).outputs
    if port.layout != "NCHW":
        raise CutError(
            f"A width is brought about by a 1x1 convolution over maps of channels before rows and columns (NCHW); "
            f"{bare.model} gives {port.layout} at {bare.cut!r}. Split elsewhere, or leave the width out.",
            subject=bare.cut,
        )
    return width


def with_classes(blueprint: Blueprint, classes: int) -> Blueprint:
    """Return the blueprint of the same part for another count of classes.

    Args:
        blueprint: Of a whole network, or of a head.
        classes: New length of the output.
    """
    return attrs.evolve(blueprint, kwargs={**blueprint.kwargs, "num_classes": classes})


def class_layers(blueprint: Blueprint) -> tuple[str, ...]:
    """Return the paths of the class layers of a network, as its builder names them; empty where it names none."""
    with seeded(0), without_draws():
        whole = whole_of(blueprint)
    return tuple(name.removesuffix(".") for name in class_layer(whole))


def structural(
    module: nn.Module, blueprint: Blueprint, *, feature_ports: Sequence[Port] | None = None
) -> Structural:
    """Derive the ports of a part by running it at several batch and image sizes.

    Args:
        module: The part; its mode, buffers and the global random state are as before afterwards.
        blueprint: Says which side it is and which image size it was traced at.
        feature_ports: For a head: the feature ports of the extractor it belongs to. Without them an extractor is
            built to learn the shapes, and the ranges are ``"any"``.

    Raises:
        CutError: The module does not run on such input, or gives something else than tensors.
    """
    if blueprint.side == "extractor":
        return extractor_structure(module, blueprint, channels_of(blueprint), _port_names(module))
    if feature_ports is None:
        other = attrs.evolve(blueprint, side="extractor")
        extractor = build(other, seed=0)
        structure = extractor_structure(extractor, other, channels_of(other), _port_names(extractor))
        feature_ports = [attrs.evolve(port, range="any") for port in structure.outputs]
    return head_structure(module, blueprint, feature_ports)


def _port_names(module: nn.Module) -> tuple[str, ...] | None:
    """Return the names of what crosses, where the part says them."""
    return getattr(module, "port_names", None)
