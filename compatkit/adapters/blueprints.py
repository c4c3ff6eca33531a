"""Build parts from their blueprints, derive their ports, and check that rebuilt parts are identical."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from torch import Tensor, nn

from compatkit.adapters.bounds import bounded_building, check_numbers
from compatkit.adapters.builders import whole_of
from compatkit.adapters.cutting.cache import cached_sides, check_once
from compatkit.adapters.cutting.cut import channels_of
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
    """Build one part; the rest of the network is dropped.

    Args:
        blueprint: Blueprint of one side of a network, or of an adapter.
        seed: Random seed of the initial weights; the global random state is restored. None uses the global state.
        state: Weights to load instead of random ones; names must match exactly.
        share: Whether the part may use the tensors of ``state`` themselves; else they are copied.
        bounded: Whether to limit the cost of building; False if it was checked before.

    Raises:
        UnknownName: The builder, model or approach is unknown.
        CutError: The network cannot be cut there, or the weights do not fit.
        TooCostly: With a state: building exceeds the limits of ``bounds``.
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
    """Build a full network and its two parts, which share the network's modules and parameters.

    If the blueprints state a width, the network is the two parts in sequence, as no builder creates it.

    Args:
        extractor: Blueprint of the extractor.
        head: Blueprint of the head of the same network.
        seed: As for ``build``; also for tensors that ``weights`` lacks.
        weights: ``"pretrained"`` for the library's own weights, a path of a safetensors file, or a state dict; a
            class layer that is missing or of another shape keeps its initial weights.

    Raises:
        UsageError: The blueprints are of different networks.
        CutError: The weights do not fit.
        IntegrityError: The weights contain unusable values.
        EnvironmentFailure: The weights could not be downloaded or read.
    """
    if attrs.evolve(extractor, side="head") != attrs.evolve(head, side="head"):
        raise UsageError(
            f"A pair must be cut from one network, got {extractor.model} {dict(extractor.kwargs)} at {extractor.cut!r} "
            f"and {head.model} {dict(head.kwargs)} at {head.cut!r}."
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
    """Check before training that publishing and loading will rebuild the parts; see ``check_once``.

    Args:
        owner: Owner of the parts, for messages.
        parts: Parts by side, on the CPU, in eval mode; the second takes the output of the first.
        blueprints: Blueprints by side.
        shape: Shape of the first part's input.

    Raises:
        CutError: As for ``check_rebuilt``.
    """

    def check() -> None:
        shapes, dtypes = [tuple(shape)], ["float32"]
        for side, part in parts.items():
            run = observe(part, *shapes, dtypes=dtypes, bounded=False)
            _check_rebuilt(f"{owner}: the {side}", part, blueprints[side], run.probe, dtypes, early=True)
            shapes = [tuple(output.shape) for output in run.outputs]
            dtypes = [str(output.dtype).removeprefix("torch.") for output in run.outputs]

    check_once([blueprints[side] for side in parts], "builds again", list(shape), check)


def check_rebuilt(owner: str, module: nn.Module, blueprint: Blueprint, contract: Contract) -> None:
    """Rebuild a part, as loading does, and compare it with its contract.

    Args:
        owner: Name of the part, for messages.
        module: The part, with its weights, on the CPU.
        blueprint: Blueprint of the part.
        contract: Contract of the part. Its probe is compared; without one, only names and shapes of the weights.

    Raises:
        CutError: The part cannot be rebuilt, its outputs differ, or they are random in eval mode; the message names
            the tensors or attributes outside the state dict that differ.
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
    """Compare a part with a rebuilt one; before training, also buffers that do not affect outputs in eval mode."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    again = build(blueprint, state=state, share=True)
    if promised is None:
        return
    run = observe(again, *promised.shapes, dtypes=dtypes, bounded=not early)
    if run.draws and not same_probe(
        run.probe, observe(again, *promised.shapes, dtypes=dtypes, seed=1, bounded=False).probe
    ):
        raise CutError(
            f"{owner} gives random outputs in eval mode, which a contract cannot promise. Draw random numbers only if "
            "self.training is set.",
            subject=owner,
        )
    names = list(differing_state(module, again))
    buffers = [name for name, _ in module.named_buffers() if early and name in names]
    same = same_probe(run.probe, promised)
    if buffers or not same:
        names = buffers or names
        fault = "has other buffers" if same else "gives other outputs on the probe input"
        state_names = f" ({', '.join(map(repr, names[:3]))})" if names else ""
        raise CutError(
            f"{owner}, rebuilt from its blueprint and its weights, {fault}. It has state outside its state "
            f"dict{state_names}, draws random numbers when it is built, or was changed after its contract was derived. "
            "Register a persistent buffer, or compute it from the arguments of the network.",
            subject=names[0] if names else owner,
        )


def _parts(whole: nn.Module, blueprint: Blueprint) -> tuple[nn.Module, nn.Module]:
    """Cut a full network as its blueprint states, including width and entry layers."""
    sides = cached_sides(whole, blueprint)
    parts = sides["extractor"](whole), sides["head"](whole)
    extractor, head = widened(*parts, blueprint, channels_of(blueprint))
    return extractor, entered(head, blueprint)


def _part(whole: nn.Module, blueprint: Blueprint) -> nn.Module:
    """Cut one part out of a full network as its blueprint states."""
    if blueprint.width is not None:  # the network's own width is known only from both parts
        return _parts(whole, blueprint)[blueprint.side == "head"]
    part = cached_sides(whole, blueprint)["head" if blueprint.side == "head" else "extractor"](whole)
    return entered(part, blueprint) if blueprint.side == "head" else part


def own_width_of(blueprint: Blueprint) -> int:
    """Return the number of channels at a network's cut, whatever width its blueprint states.

    Raises:
        CutError: The features are not NCHW maps, so a 1x1 convolution cannot change their width.
    """
    bare = attrs.evolve(blueprint, side="extractor", width=None)
    extractor = build(bare, seed=0)
    width = own_width(extractor, bare, channels_of(bare))
    (port,) = structural(extractor, bare).outputs
    if port.layout != "NCHW":
        raise CutError(
            f"A width needs NCHW features for its 1x1 convolution; {bare.model} gives {port.layout} at {bare.cut!r}. "
            "Split elsewhere, or leave the width out.",
            subject=bare.cut,
        )
    return width


def with_classes(blueprint: Blueprint, classes: int) -> Blueprint:
    """Return the blueprint of the same part for another number of classes.

    Args:
        blueprint: Blueprint of a part.
        classes: New number of classes.
    """
    return attrs.evolve(blueprint, kwargs={**blueprint.kwargs, "num_classes": classes})


def class_layers(blueprint: Blueprint) -> tuple[str, ...]:
    """Return the paths of a network's class layers, as its builder names them; empty if it names none."""
    with seeded(0), without_draws():
        whole = whole_of(blueprint)
    return tuple(name.removesuffix(".") for name in class_layer(whole))


def structural(
    module: nn.Module, blueprint: Blueprint, *, feature_ports: Sequence[Port] | None = None
) -> Structural:
    """Derive the ports of a part by running it at several batch and image sizes.

    Args:
        module: The part; its mode, buffers and the global random state are restored.
        blueprint: Blueprint of the part, with its side and the traced image size.
        feature_ports: For a head: feature ports of its extractor. Without them an extractor is built to learn the
            shapes, and the ranges are ``"any"``.

    Raises:
        CutError: The module fails on such input, or does not return tensors.
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
    """Return the names of the feature ports, if the part has them."""
    return getattr(module, "port_names", None)
