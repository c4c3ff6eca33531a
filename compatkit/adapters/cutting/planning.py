"""Try cuts of a network: approach, tensors that cross, and where a network can be cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.builders import BUILDERS, builder_for, create, json_kwargs
from compatkit.adapters.cutting.cache import cached_sides
from compatkit.adapters.cutting.crossing import OTHER_SIZES
from compatkit.adapters.cutting.cut import approaches_for, channels_of
from compatkit.adapters.cutting.discovery import CutPoint, find_cut_points
from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import seeded, without_draws
from compatkit.adapters.modelconfig import InputSpec, class_layer, config_of, input_of
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.image_size import image_size
from compatkit.errors import CutError, type_of
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.display import aligned


@attrs.frozen
class CutPlan:
    """A working cut.

    Attributes:
        extractor: Blueprint of the extractor.
        head: Blueprint of the head.
        class_layer: Prefixes of the class layer's tensors in the head's state dict, such as ``"fc."``.
        input: Images that the network takes.
        parameters: Number of parameters of extractor and head.
    """

    extractor: Blueprint
    head: Blueprint
    class_layer: tuple[str, ...]
    input: InputSpec
    parameters: tuple[int, int]


def plan(
    model: str,
    cut: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    size: int | tuple[int, int] | None = None,
    builder: str | None = None,
) -> CutPlan:
    """Try a cut and return the blueprints of both parts.

    Args:
        model: Model name of the builder.
        cut: Module path such as ``"layer2"`` or ``"blocks.4"``, or ``"forward_features"``.
        kwargs: JSON values for the builder.
        size: Height and width of the images in pixels, or one number for both; default: the model's own. A model of
            fixed size is built for this size (``img_size``).
        builder: Name of the builder; None for the one that has a model of this name.

    Raises:
        UnknownName: No such builder, model or cut; the message suggests similar names.
        UsageError: The arguments do not fit the model.
        CutError: The network cannot be cut there; the message gives the reason.
    """
    whole, spec, attempt = _attempt(builder, model, kwargs, size)
    blueprint, extractor, head = working_cut(whole, attrs.evolve(attempt, cut=cut))
    parameters = tuple(
        sum(parameter.numel() for parameter in part.parameters()) for part in (extractor, head)
    )
    layers = tuple(name for name in class_layer(whole) if any(k.startswith(name) for k in head.state_dict()))
    return CutPlan(
        blueprint, attrs.evolve(blueprint, side="head"), layers, spec, (parameters[0], parameters[1])
    )


def _attempt(
    builder: str | None, model: str, kwargs: Mapping[str, Any] | None, size: int | tuple[int, int] | None
) -> tuple[nn.Module, InputSpec, Blueprint]:
    """Return a network, the images that it takes, and the blueprint of its extractor without a cut."""
    builder = builder_for(model, builder)
    whole, arguments, spec = build_uninitialized(builder, model, kwargs or {}, size)
    library = BUILDERS[builder].library()
    return whole, spec, Blueprint(builder, library, model, arguments, "", "extractor", "", spec.size)


class Cuts(tuple[CutPoint, ...]):
    """Possible cuts of a network in the order of the forward pass; displayed as a table of the usable ones."""

    __slots__ = ()
    HEADER = ("cut", "module", "gives", "parameters", "behind", "FLOPs", "behind", "way")

    @property
    def usable(self) -> tuple[CutPoint, ...]:
        """Cuts where one module's output crosses alone, without inner modules that end where an outer one does."""
        return tuple(point for point in self if point.own and not point.refused and not point.same_as)

    def __repr__(self) -> str:
        return "\n".join(aligned([self.HEADER, *(point.row() for point in self.usable)]))

    __str__ = __repr__


@checks_arguments
def cuts(
    model: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    size: int | tuple[int, int] | None = None,
    builder: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Cuts:
    """Return the possible cuts of a network in the order of the forward pass.

    Cuts where a module's own output crosses alone are tried; the others are listed with the tensors that cross.

    Args:
        model: Model name of the builder.
        kwargs: JSON values for the builder.
        size: Height and width of the images in pixels, or one number for both; default: the model's own.
        builder: Name of the builder; None for the one that has a model of this name.
        progress: Callback with the number of the cut, their total and the cut's name.

    Returns:
        Cut points, with the reason where the network cannot be cut.

    Raises:
        UnknownName: No such builder or model.
    """
    whole, spec, attempt = _attempt(builder, model, kwargs, size)
    points = find_cut_points(whole, (spec.channels, *spec.size))
    results = []
    for number, point in enumerate(points, 1):
        if progress is not None:
            progress(number, len(points), point.name)
        results.append(_try(whole, attrs.evolve(attempt, cut=point.name), point) if point.own else point)
    return Cuts(results)


def _try(whole: nn.Module, attempt: Blueprint, point: CutPoint) -> CutPoint:
    """Return the point with the approach that cuts it, or the reason why none does."""
    if point.refused:
        return point
    try:
        return attrs.evolve(point, approach=working_cut(whole, attempt)[0].approach)
    except CutError as error:
        return attrs.evolve(point, refused=str(error))


def parts_of(whole: nn.Module, blueprint: Blueprint) -> tuple[nn.Module, nn.Module]:
    """Cut a network at the cut of its blueprint; return extractor and head.

    Args:
        whole: Network built from the blueprint.
        blueprint: Blueprint of either part.
    """
    sides = cached_sides(whole, blueprint)
    return sides["extractor"](whole), sides["head"](whole)


def build_uninitialized(
    builder: str, model: str, kwargs: Mapping[str, Any], size: int | tuple[int, int] | None
) -> tuple[nn.Module, dict[str, Any], InputSpec]:
    """Return a network without initial weights, its keyword arguments, and the images that it takes.

    Args:
        builder: Name of the builder.
        model: Model name of the builder.
        kwargs: JSON values for the builder.
        size: Height and width of the images in pixels, or one number for both; None for the network's own.

    Raises:
        UnknownName: No such builder or model.
        UsageError: The arguments do not fit the model.
    """
    arguments = json_kwargs(model, kwargs)
    size = None if size is None else image_size(size, "size")
    with seeded(0), without_draws():
        whole = create(builder, model, arguments)
        if size is not None and config_of(whole).get("fixed_input_size") and "img_size" not in arguments:
            arguments["img_size"] = list(size)
            whole = create(builder, model, arguments)
    spec = input_of(whole, arguments, size)
    if spec.channels != 3:
        arguments["in_chans"] = spec.channels
    return whole, arguments, spec


def working_cut(whole: nn.Module, attempt: Blueprint) -> tuple[Blueprint, nn.Module, nn.Module]:
    """Try the approaches in turn; return the blueprint with the first that works, and both parts.

    Args:
        whole: Network of the blueprint.
        attempt: Blueprint with the cut; its approach is ignored.

    Raises:
        CutError: No approach works; the message is that of the last.
    """
    *first, last = (attrs.evolve(attempt, approach=approach) for approach in approaches_for(attempt.cut))
    for blueprint in first:
        try:
            return _run(whole, blueprint)
        except _UnsuitableImages:
            raise
        except CutError:
            continue
    return _run(whole, last)


class _UnsuitableImages(CutError):
    """The network does not take such images, with any approach."""


def _run(whole: nn.Module, blueprint: Blueprint) -> tuple[Blueprint, nn.Module, nn.Module]:
    """Cut and run once; return the blueprint with the number of tensors that cross, and both parts.

    Raises:
        CutError: The network does not take such images, or the approach fails.
    """
    extractor, head = parts_of(whole, blueprint)
    height, width = blueprint.traced_size
    with restored_state(whole, extractor, head), torch.no_grad():
        extractor.eval()
        head.eval()
        try:
            features = extractor(signal((2, channels_of(blueprint), height, width)))
            crossing = (features,) if isinstance(features, Tensor) else features
            several = isinstance(crossing, tuple) and all(isinstance(tensor, Tensor) for tensor in crossing)
            if isinstance(features, Tensor) or (several and blueprint.approach != "fx"):
                head(features)
                if blueprint.approach == "stopped":
                    _check_other_sizes(whole, extractor, head, blueprint)
                return attrs.evolve(blueprint, cut_outputs=len(crossing)), extractor, head
        except (RuntimeError, AssertionError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise _UnsuitableImages(
                f"{blueprint.model} does not take {channels_of(blueprint)} x {height} x {width} images: {error}. Leave "
                "size out for its own, or look for an img_size argument.",
                subject=blueprint.cut,
            ) from error
    raise CutError(
        f"{blueprint.cut!r} of {blueprint.model} returns {type_of(features)}; only tensors can cross a cut. Split "
        "at another module.",
        subject=blueprint.cut,
    )


def _check_other_sizes(whole: nn.Module, extractor: nn.Module, head: nn.Module, blueprint: Blueprint) -> None:
    """Compare the parts with the whole network at other image sizes.

    Raises:
        CutError: Outputs differ, or the network takes no other size, so that nothing could be compared.
    """
    height, width = blueprint.traced_size
    compared = 0
    whole.eval()
    for tall, wide in (*OTHER_SIZES, (-(height // 2), -(width // 3))):
        images = signal((2, channels_of(blueprint), height + tall, width + wide))
        try:
            expected = whole(images)
        except Exception:  # foreign code refuses sizes in its own way
            continue
        # Uninitialized weights may give NaN.
        if not torch.equal(torch.nan_to_num(head(extractor(images))), torch.nan_to_num(expected)):
            raise CutError(
                f"The parts differ from {blueprint.model} at {height + tall}x{width + wide} pixels."
            )
        compared += 1
    if not compared:
        raise CutError(f"{blueprint.model} takes images of {height}x{width} pixels only.")
