"""Contracts: ports, data, protocol and statistics of a component, as plain values without tensors.

All of it is derived: adapters get the structural level by running the module, the trainer gets data and protocol from
the run. ``check.check`` compares two contracts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from compatkit.contracts.own_networks import actual_builder

Layout = Literal["NCHW", "NHWC", "NLC", "NC", "other"]
"""``"other"``: no leading batch axis, channels before tokens, or 1 or 5 axes."""
Kind = Literal[
    "extractor", "head", "auxiliary_head", "adapter", "encoder", "latent", "decoder", "recombination"
]
EXTRACTORS = ("extractor", "encoder")
"""Kinds that produce features."""
HEADS = ("head", "auxiliary_head")
"""Kinds that consume features; a shared auxiliary head that classifies may replace a network's own head."""


@attrs.frozen
class Scaled:
    """A dimension that depends on another one: ``(of + add) // floordiv * times + plus``, in elements.

    ``times`` counts what one image is folded into: ``Scaled("N", times=196)`` is 196 per image.
    """

    of: str
    add: int = 0
    floordiv: int = 1
    plus: int = 0
    times: int = 1

    def at(self, size: int) -> int:
        """Return the dimension for ``size`` of the one it depends on."""
        return (size + self.add) // self.floordiv * self.times + self.plus


Dimension = int | str | Scaled
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
    shape: tuple[Dimension, ...]
    dtype: str = "float32"
    layout: Layout = "NCHW"
    range: Literal["nonnegative", "signed", "any"] = "any"
    pooled: bool = False
    prefix_tokens: int = 0
    measured: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    multiple_of: int = 1

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
    """Ports in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@attrs.frozen
class Label:
    """A class name with its synonyms (``automobile`` is ``car``)."""

    name: str
    same_as: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All names of this class."""
        return frozenset((self.name, *self.same_as))


@attrs.frozen
class Data:
    """Preprocessing of the images, and the classes of the outputs.

    Attributes:
        size: Height and width in pixels.
        channels: ``"L"`` (gray) or ``"RGB"``.
        mean: Per channel, on the scale 0 to 1.
        std: Per channel, on the scale 0 to 1.
        interpolation: How images are resized: ``"nearest"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
        labels: Classes in the order of the outputs; None for a component without classes.
        crop_pct: Share of the resized image that is kept: images are resized to ``size / crop_pct``, then
            center-cropped to ``size``.
        crop_mode: ``"squash"`` ignores the aspect ratio; ``"center"`` keeps it and covers the size (as in timm).
    """

    size: tuple[int, int]
    channels: Literal["L", "RGB"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"
    labels: tuple[Label, ...] | None = None
    crop_pct: float = 1.0
    crop_mode: Literal["center", "squash"] = "squash"


@attrs.frozen
class Anchor:
    """Something that parts were trained against, by digest; parts with equal digests share the anchor.

    Attributes:
        kind: ``"initial_weights"`` (the network without its class layer) or ``"auxiliary_head"``.
        digest: Tensor digest, ``"tensors:sha256:..."``.
        task: For auxiliary heads: ``"dcc"``, ``"rotation"``, ...
        classes: For auxiliary heads that classify: classes of their outputs. For initial weights that include the
            class layer: classes of this network's rows.
    """

    kind: Literal["initial_weights", "auxiliary_head"]
    digest: str
    task: str | None = None
    classes: tuple[Label, ...] | None = None


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
    frozen_stages: int = attrs.field(default=0, metadata={"absent_where_default": True})


@attrs.frozen
class Probe:
    """Fingerprint of the function: a fixed input, the projected output, a relative tolerance.

    Attributes:
        shapes: Shape of the fixed input at each input port.
    """

    input: str
    shapes: tuple[tuple[int, ...], ...]
    sketch: tuple[float, ...]
    relative_tolerance: float
    digest: str


@attrs.frozen
class FeatureStatistics:
    """Statistics of the features at one port, on training images in eval mode.

    Attributes:
        mean: Over all images, channels and positions.
        std: Over the same.
        samples: Number of images.
        per_channel: Edge ``{"blob": "sha256:...", "bytes": n}`` to the means, then the standard deviations of all
            channels, little-endian float32; None if not kept.
    """

    mean: float
    std: float
    samples: int
    per_channel: Mapping[str, Any] | None = None


@attrs.frozen
class Statistical:
    """Feature statistics of each feature port in order (None until measured), and the probe.

    An extractor states them for its output, a head for its training input.
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
            width, and a head of another width begins with one from this width. None for the network's own features. A
            manifest contains it only if set.
        entries: For a head: paths of linear layers (with bias) that take the features, with their input channels,
            where these differ from the network's own. A manifest contains them only if there are any.
    """

    builder: str
    library: str
    model: str
    kwargs: Mapping[str, Any]
    cut: str = attrs.field(metadata={"key": "split"})
    side: Literal["extractor", "head", "adapter", "recombination"]
    approach: str
    traced_size: tuple[int, int]
    cut_outputs: int = 1
    width: int | None = attrs.field(default=None, metadata={"absent_where_default": True})
    entries: tuple[tuple[str, int], ...] = attrs.field(default=(), metadata={"absent_where_default": True})

    @property
    def network(self) -> tuple[str, str]:
        """Builder and model name, whatever an older manifest calls the builder."""
        return actual_builder(self.builder, self.model), self.model

    @property
    def takes_images(self) -> bool:
        """Whether the input is images rather than features."""
        return self.side in ("extractor", "recombination")

    @property
    def is_cut(self) -> bool:
        """Whether a builder makes it as one side of a network."""
        return self.side in ("extractor", "head")


@attrs.frozen
class Contract:
    """The four stored levels; the fifth, evidence, is stored separately because it grows.

    Attributes:
        adapters: For a recombination: the stitching layers between its parts, in order.
    """

    structural: Structural
    data: Data
    protocol: Protocol
    statistical: Statistical = Statistical()
    adapters: tuple[Blueprint, ...] = ()
