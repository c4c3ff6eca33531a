"""From a model name to parts and back: plan a cut, build either part from its blueprint alone, describe it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.builders import BUILDERS, create, json_kwargs, whole_of
from compatkit.adapters.cutting import CANONICAL, approach_for, cut
from compatkit.adapters.discovery import valid_modules
from compatkit.adapters.fingerprint import probe, same_probe
from compatkit.adapters.initialisation import seeded, without_draws
from compatkit.adapters.inputs import InputSpec, class_layer, config_of, input_of
from compatkit.adapters.proof import prove, unchanged
from compatkit.adapters.signals import signal
from compatkit.adapters.structure import extractor_structure, head_structure
from compatkit.adapters.weights import load_part, load_whole
from compatkit.contract import Blueprint, Port, Structural
from compatkit.errors import CutError, UsageError

__all__ = [
    "InputSpec",
    "Plan",
    "build",
    "build_pair",
    "plan",
    "probe",
    "prove",
    "same_probe",
    "split_points",
    "structural",
    "with_classes",
]


@attrs.frozen
class Plan:
    """A cut that was tried and works.

    Attributes:
        class_layer: Prefixes of the class layer's tensors in the head's state dict, such as ``"fc."``.
        parameters: Counts of extractor and head.
    """

    extractor: Blueprint
    head: Blueprint
    class_layer: tuple[str, ...]
    input: InputSpec
    parameters: tuple[int, int]


def plan(
    model: str,
    split: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    size: tuple[int, int] | None = None,
    builder: str = "timm",
) -> Plan:
    """Try a cut and return the blueprints of both parts.

    Args:
        model: Name that the builder knows.
        split: Module path such as ``"layer2"`` or ``"blocks.4"``, or ``"forward_features"``.
        kwargs: JSON values for the builder.
        size: Height and width of the images; default: the backbone's own. A backbone of fixed size is built for
            this size (``img_size``).
        builder: Key of the table of builders.

    Raises:
        UnknownName: No such builder, model or split point; the message suggests near ones.
        UsageError: The arguments do not fit the model.
        CutError: The network cannot be cut there; the message says what crosses.
    """
    given = json_kwargs(model, kwargs or {})
    with seeded(0), without_draws():
        whole = create(builder, model, given)
        if size is not None and config_of(whole).get("fixed_input_size") and "img_size" not in given:
            given["img_size"] = list(size)
            whole = create(builder, model, given)
    spec = input_of(whole, given, size)
    if spec.channels != 3:
        given["in_chans"] = spec.channels
    blueprint = Blueprint(
        builder, BUILDERS[builder].library(), model, given, split, "extractor", approach_for(split), spec.size
    )
    extractor, head = _parts(whole, blueprint)
    _try(extractor, head, blueprint)
    parameters = tuple(
        sum(parameter.numel() for parameter in part.parameters()) for part in (extractor, head)
    )
    layers = tuple(name for name in class_layer(whole) if any(k.startswith(name) for k in head.state_dict()))
    return Plan(blueprint, attrs.evolve(blueprint, side="head"), layers, spec, (parameters[0], parameters[1]))


def build(
    blueprint: Blueprint, *, seed: int | None = None, state: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Build one part alone; the rest of the network is dropped.

    Args:
        blueprint: Says what to build.
        seed: Draws the initial weights; the global random state stays as it is. None draws from the global state.
        state: Weights to load, all of them and no others; nothing is drawn then.

    Raises:
        UnknownName: The builder, model or approach is not known here.
        CutError: The cut does not work here, or the weights are of another module.
    """
    if state is None:
        with seeded(seed):
            return _parts(whole_of(blueprint), blueprint)[blueprint.side == "head"]
    with seeded(0), without_draws():
        part = _parts(whole_of(blueprint), blueprint)[blueprint.side == "head"]
    load_part(part, state, f"the {blueprint.side} of {blueprint.model} at {blueprint.split!r}")
    return part


def build_pair(
    extractor: Blueprint,
    head: Blueprint,
    *,
    seed: int | None = None,
    weights: str | Path | Mapping[str, Tensor] | None = None,
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Build a whole network and its two parts, which hold the whole's own modules and parameters.

    Args:
        extractor: Blueprint of the extractor.
        head: Blueprint of the head of the same network.
        seed: As for ``build``; also draws what ``weights`` does not hold.
        weights: ``"pretrained"`` for the library's own weights, a path of a safetensors file, or a state dict; a
            class layer of another shape, or none, is left as drawn.

    Raises:
        UsageError: The blueprints are of different networks.
        CutError: The weights do not fit.
        EnvironmentFailure: The weights could not be fetched or read.
    """
    if attrs.evolve(extractor, side="head") != attrs.evolve(head, side="head"):
        raise UsageError(
            f"A pair is cut from one network: the extractor is of {extractor.model} {dict(extractor.kwargs)} at "
            f"{extractor.split!r}, the head of {head.model} {dict(head.kwargs)} at {head.split!r}."
        )
    with seeded(seed):
        whole = whole_of(extractor, pretrained=weights == "pretrained")
    if weights is not None and weights != "pretrained":
        load_whole(whole, weights, extractor.model)
    left, right = _parts(whole, extractor)
    return whole, left, right


def with_classes(blueprint: Blueprint, classes: int) -> Blueprint:
    """Return the blueprint of the same part for another count of classes."""
    return attrs.evolve(blueprint, kwargs={**blueprint.kwargs, "num_classes": classes})


def structural(module: nn.Module, blueprint: Blueprint, *, feature_port: Port | None = None) -> Structural:
    """Derive the ports of a part by running it at several batch and image sizes.

    Args:
        module: The part; its mode, buffers and the global random state are as before afterwards.
        blueprint: Says which side it is and which image size it was traced at.
        feature_port: For a head: the feature port of the extractor it belongs to. Without it an extractor is
            built to learn the shape, and the range is ``"any"``.

    Raises:
        CutError: The module does not run on such input, or gives no single tensor.
    """
    if blueprint.side == "extractor":
        return extractor_structure(module, blueprint, _channels(blueprint))
    if feature_port is None:
        other = attrs.evolve(blueprint, side="extractor")
        port = extractor_structure(build(other, seed=0), other, _channels(other)).outputs[0]
        feature_port = attrs.evolve(port, range="any")
    return head_structure(module, blueprint, feature_port)


def split_points(model: str, kwargs: Mapping[str, Any] | None = None, *, builder: str = "timm") -> list[str]:
    """Return the valid split points in the order of the forward pass, ``"forward_features"`` first if there.

    Raises:
        UnknownName: No such builder or model.
    """
    with seeded(0):
        whole = create(builder, model, kwargs or {})
    spec = input_of(whole, kwargs or {}, None)
    canonical = [CANONICAL] if hasattr(whole, "forward_features") and hasattr(whole, "forward_head") else []
    return canonical + valid_modules(whole, (spec.channels, *spec.size))


def _parts(whole: nn.Module, blueprint: Blueprint) -> tuple[nn.Module, nn.Module]:
    return cut(whole, blueprint.split, blueprint.approach, (_channels(blueprint), *blueprint.traced_size))


def _channels(blueprint: Blueprint) -> int:
    """Return the image channels; a blueprint names them wherever they are not 3."""
    return int(blueprint.kwargs.get("in_chans", 3))


def _try(extractor: nn.Module, head: nn.Module, blueprint: Blueprint) -> None:
    """Run a new cut once.

    Raises:
        CutError: The network does not take such images, or something else than one tensor crosses.
    """
    height, width = blueprint.traced_size
    with unchanged(extractor, head), torch.no_grad():
        extractor.eval()
        head.eval()
        try:
            features = extractor(signal((2, _channels(blueprint), height, width)))
            if isinstance(features, Tensor):
                head(features)
                return
        except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
            raise CutError(
                f"{blueprint.model} does not take {_channels(blueprint)} x {height} x {width} images: {error}. Leave "
                "size out for its own, or look for an img_size argument.",
                subject=blueprint.split,
            ) from error
    raise CutError(
        f"{blueprint.split!r} of {blueprint.model} gives a {type(features).__name__}; a cut passes one tensor. Split "
        "at another module.",
        subject=blueprint.split,
    )
