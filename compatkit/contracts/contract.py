"""Contracts: ports, data, protocol and statistics of a component, as plain values without tensors.

Contracts are derived, not written by hand: ports by running the module, data and protocol from the training run.
``check.check`` compares two contracts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs
from msgspec import Meta

from compatkit.contracts.own_networks import actual_builder
from compatkit.errors import FormatError

MAX_DIMENSION = 2**40
"""No tensor is longer, and integers of other JSON readers do not overflow."""
MAX_SIDE = 2**12
"""Maximal side of an image in pixels; sets of larger images do not fit in memory."""
MAX_WIDTH = 2**16
"""Maximal channels of a 1x1 convolution in a blueprint: it is allocated before any comparison."""
MAX_AXES, MAX_PORTS, MAX_NAMES, MAX_LABELS = 32, 256, 1024, 200_000
MAX_SKETCH = 1024
"""Maximal length of a probe's sketch."""

Count = Annotated[int, Meta(ge=0, le=MAX_DIMENSION)]
Length = Annotated[int, Meta(ge=1, le=MAX_DIMENSION)]
Offset = Annotated[int, Meta(ge=-MAX_DIMENSION, le=MAX_DIMENSION)]
Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]
Width = Annotated[int, Meta(ge=1, le=MAX_WIDTH)]
Tensors = Annotated[int, Meta(ge=1, le=MAX_PORTS)]
Positive = Annotated[float, Meta(gt=0)]
Symbol = Annotated[str, Meta(pattern=r"^(N|[HWL][0-9]{0,3})\Z")]
Dtype = Annotated[str, Meta(pattern=r"^(u?int(8|16|32|64)|float(16|32|64)|bfloat16|complex(64|128)|bool)\Z")]
ImageSize = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,5}x[1-9][0-9]{0,5}\Z")]
"""Types with ranges and patterns that are checked when a contract is read."""

Layout = Literal["NCHW", "NHWC", "NLC", "NC", "other"]
"""``"other"``: no leading batch axis, channels before tokens, or 1 or 5 axes."""


def matches(pattern: str, expected: str) -> Any:
    """Return an attrs validator for text that matches a pattern.

    Args:
        pattern: Regular expression for the whole text.
        expected: Description of the pattern, for messages.
    """
    whole = re.compile(pattern)

    def check(instance: object, field: attrs.Attribute[str], value: object) -> None:
        if not isinstance(value, str) or not whole.fullmatch(value):
            raise FormatError(f"{field.name}: expected {expected}, got {value!r:.100}.")

    return check


tensors_digest = matches("tensors:sha256:[0-9a-f]{64}", "'tensors:sha256:' and 64 hex digits")


@attrs.frozen
class Scaled:
    """A dimension that depends on another one: ``(of + add) // floordiv * times + plus``, in elements.

    Example: ``Scaled("N", times=196)`` is the first axis after 196 patches per image were folded into the batch.
    """

    of: Annotated[str, Meta(pattern=r"^[NHW]\Z")]
    add: Offset = 0
    floordiv: Length = 1
    plus: Offset = 0
    times: Length = 1

    def at(self, size: int) -> int:
        """Return the dimension if ``of`` has this size."""
        return (size + self.add) // self.floordiv * self.times + self.plus


Dimension = Length | Symbol | Scaled
"""A fixed size, a free symbol such as ``"N"`` or ``"H"``, or a function of a symbol."""


@attrs.frozen
class Port:
    """One tensor that enters or leaves a component.

    Attributes:
        shape: One dimension per axis. ``"N"`` is the batch; it is the first axis if the layout begins with it. A
            tensor shared by all images has no ``"N"``.
        range: ``"nonnegative"`` (after ReLU), ``"signed"``, or ``"any"`` if unknown.
        pooled: True if the spatial axes have been averaged away.
        prefix_tokens: Number of class and register tokens before the patch tokens (``NLC`` only).
        measured: Observed sizes of the ``spatial`` axes by input size such as ``"32x32"``.
        multiple_of: Step of allowed image sizes in pixels (image ports only): 32 if only multiples of 32 are
            accepted.
    """

    name: str
    shape: Annotated[tuple[Dimension, ...], Meta(min_length=1, max_length=MAX_AXES)]
    dtype: Dtype = "float32"
    layout: Layout = "NCHW"
    range: Literal["nonnegative", "signed", "any"] = "any"
    pooled: bool = False
    prefix_tokens: Count = 0
    measured: Mapping[ImageSize, tuple[Count, ...]] = attrs.field(factory=dict)
    multiple_of: Side = 1

    @property
    def channels(self) -> Dimension:
        """The feature width: axis 1 for NCHW and NC, else the last axis."""
        return self.shape[1] if self.layout in ("NCHW", "NC") else self.shape[-1]

    @property
    def spatial_axes(self) -> tuple[int, ...]:
        """The axes of ``spatial``."""
        if self.layout == "other":
            return tuple(axis for axis, dimension in enumerate(self.shape) if _follows_image(dimension))
        return _SPATIAL_AXES[self.layout]

    @property
    def spatial(self) -> tuple[Dimension, ...]:
        """The spatial dimensions, the token count, or none for a vector; for ``"other"``, all that follow the image."""
        return tuple([self.shape[axis] for axis in self.spatial_axes])


_SPATIAL_AXES = {"NCHW": (2, 3), "NHWC": (1, 2), "NLC": (1,), "NC": ()}


def _follows_image(size: Dimension) -> bool:
    return not isinstance(size, int) and (size.of if isinstance(size, Scaled) else size) != "N"


@attrs.frozen
class Structural:
    """Input and output ports, in order."""

    inputs: Annotated[tuple[Port, ...], Meta(min_length=1, max_length=MAX_PORTS)]
    outputs: Annotated[tuple[Port, ...], Meta(min_length=1, max_length=MAX_PORTS)]


@attrs.frozen
class Label:
    """A class name with its synonyms (``automobile`` is ``car``)."""

    name: str
    same_as: Annotated[tuple[str, ...], Meta(max_length=MAX_NAMES - 1)] = ()

    @property
    def names(self) -> frozenset[str]:
        """All names of this class."""
        return frozenset((self.name, *self.same_as))


Labels = Annotated[tuple[Label, ...], Meta(max_length=MAX_LABELS)]


@attrs.frozen
class Data:
    """Preprocessing of the images, and the classes of the outputs.

    Attributes:
        size: Height and width in pixels.
        channels: ``"L"`` (gray) or ``"RGB"``.
        mean: Mean of each channel, on the scale 0 to 1.
        std: Standard deviation of each channel, on the scale 0 to 1.
        interpolation: How images are resized: ``"nearest"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
        labels: Classes in the order of the outputs; None for a component without classes.
        crop_pct: Share of the resized image that is kept: images are resized to ``size / crop_pct``, then
            center-cropped to ``size``.
        crop_mode: ``"squash"`` ignores the aspect ratio; ``"center"`` keeps it and covers the size (as in timm).
    """

    size: tuple[Side, Side]
    channels: Literal["L", "RGB"]
    mean: tuple[float, ...]
    std: tuple[Positive, ...]
    interpolation: str = "bilinear"
    labels: Labels | None = None
    crop_pct: Annotated[float, Meta(gt=0, le=4)] = 1.0
    crop_mode: Literal["center", "squash"] = "squash"


@attrs.frozen
class Anchor:
    """Tensors that a part was trained against, by digest; parts with equal digests share the anchor.

    Attributes:
        kind: ``"initial_weights"`` (the network without its class layer) or ``"auxiliary_head"``.
        digest: Tensor digest, ``"tensors:sha256:..."``.
        task: For auxiliary heads: ``"dcc"``, ``"rotation"``, ...
        classes: For auxiliary heads that classify: classes of their outputs. For initial weights that include the
            class layer: classes of this network's rows.
    """

    kind: Literal["initial_weights", "auxiliary_head"]
    digest: str = attrs.field(validator=tensors_digest)
    task: str | None = None
    classes: Labels | None = None


@attrs.frozen
class Protocol:
    """How the component was trained, as far as recombination depends on it.

    Attributes:
        norm: ``"batch"`` if the module contains batch normalization, so that statistics must come from a
            batch or be re-estimated after recombination; else ``"none"``.
        frozen_stages: Number of stages, counted from the image, whose weights and statistics did not change in
            training; left out of a manifest if 0.
    """

    norm: Literal["batch", "none"] = attrs.field(metadata={"key": "normalisation"})
    anchors: tuple[Anchor, ...] = ()
    frozen_stages: Count = attrs.field(default=0, metadata={"absent_where_default": True})


@attrs.frozen
class Probe:
    """Fingerprint of the function: a fixed input, the projected output, a relative tolerance.

    Attributes:
        input: Name of the fixed input.
        shapes: Shape of the fixed input at each input port.
        sketch: Projections of the output onto fixed signals.
        relative_tolerance: Maximal relative distance between two sketches of the same function.
        digest: Digest of the output bytes, ``"value:sha256:..."``; for information, as it differs between machines.
    """

    input: str
    shapes: tuple[Annotated[tuple[Length, ...], Meta(min_length=1, max_length=MAX_AXES)], ...]
    sketch: Annotated[tuple[float, ...], Meta(min_length=1, max_length=MAX_SKETCH)]
    relative_tolerance: Annotated[float, Meta(gt=0, le=0.1)]
    digest: str = attrs.field(
        validator=matches("value:[a-z0-9]+:[0-9a-f]{1,128}", "'value:sha256:' and hex digits")
    )


@attrs.frozen
class FeatureStatistics:
    """Statistics of the features at one port, on training images in eval mode.

    Attributes:
        mean: Mean over all images, channels and positions.
        std: Standard deviation over all images, channels and positions.
        samples: Number of images.
        per_channel: Edge ``{"blob": "sha256:...", "bytes": n}`` to the means, then the standard deviations of all
            channels, little-endian float32; None if not stored.
    """

    mean: float
    std: Annotated[float, Meta(ge=0)]
    samples: Length
    per_channel: Mapping[str, Any] | None = None


@attrs.frozen
class Statistical:
    """Feature statistics and probe.

    Attributes:
        features: Statistics of each feature port in order: of the outputs of an extractor, of the training inputs of
            a head. None until measured.
        probe: Fingerprint of the function; None until measured.
    """

    features: tuple[FeatureStatistics, ...] | None = None
    probe: Probe | None = None


@attrs.frozen
class Blueprint:
    """How to rebuild a component's module without stored code.

    Attributes:
        builder: Registered builder, for example ``"timm"``.
        library: Library and version that built the module, for example ``"timm 1.0.31"``.
        model: Model name for the builder.
        kwargs: Arguments of the builder, as JSON values.
        cut: Module after which the network is cut, or ``"forward_features"`` for the canonical cut.
        side: ``"extractor"``, ``"head"`` (also for auxiliary heads), ``"adapter"`` (not cut at all), or
            ``"recombination"`` (composed of components).
        approach: How the cut is made: ``"fx"``, ``"declared"``, ``"stopped"`` or ``"canonical"``; ``"whole"`` for an
            adapter or a recombination.
        traced_size: Height and width of the traced image.
        cut_outputs: Number of tensors that cross the cut.
        width: Channels that cross the cut if not the network's own: the extractor ends with a 1x1 convolution to this
            width, and a head of another width begins with a 1x1 convolution from this width. None for the network's
            own features. A manifest contains it only if set.
        entries: For a head: paths of linear layers (with bias) that take the features, with their input channels,
            if these differ from the network's own. A manifest contains them only if there are any.
    """

    builder: str
    library: str
    model: str
    kwargs: Mapping[str, Any]
    cut: str = attrs.field(metadata={"key": "split"})
    side: Literal["extractor", "head", "adapter", "recombination"]
    approach: str
    traced_size: tuple[Side, Side]
    cut_outputs: Tensors = 1
    width: Width | None = attrs.field(default=None, metadata={"absent_where_default": True})
    entries: tuple[tuple[str, Width], ...] = attrs.field(default=(), metadata={"absent_where_default": True})

    @property
    def network(self) -> tuple[str, str]:
        """Actual builder and model name; older manifests record another builder for compatkit's own networks."""
        return actual_builder(self.builder, self.model), self.model

    @property
    def takes_images(self) -> bool:
        """Whether the input is images rather than features."""
        return self.side in ("extractor", "recombination")

    @property
    def is_cut(self) -> bool:
        """Whether a builder builds it as one side of a cut network."""
        return self.side in ("extractor", "head")


@attrs.frozen
class Contract:
    """The four levels of a manifest; the fifth, evidence, is stored separately because it grows.

    Attributes:
        adapters: For a recombination: the stitching layers between its parts, in order.
    """

    structural: Structural
    data: Data
    protocol: Protocol
    statistical: Statistical = Statistical()
    adapters: tuple[Blueprint, ...] = ()
