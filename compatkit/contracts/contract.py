"""What a component promises: ports, data, protocol and statistics, as plain values without any tensor.

Nothing here is typed in by hand: adapters derive the structural level by running the module, the trainer
derives data and protocol from the run. ``compatibility.check`` compares two of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

Layout = Literal["NCHW", "NHWC", "NLC", "NC", "other"]
"""``"other"`` is anything else: no batch axis in front, channels before tokens, 1 or 5 axes."""
Kind = Literal[
    "extractor", "head", "auxiliary_head", "adapter", "encoder", "latent", "decoder", "recombination"
]
EXTRACTORS = ("extractor", "encoder")
"""Kinds that give features."""
HEADS = ("head", "auxiliary_head")
"""Kinds that take features; a shared head that tells classes apart may stand where a network's own does."""


@attrs.frozen
class Scaled:
    """A dimension that follows another: ``(of + add) // floordiv * times + plus``, in elements.

    ``times`` is for what several images are folded into: ``Scaled("N", times=196)`` is 196 for each image.
    """

    of: str
    add: int = 0
    floordiv: int = 1
    plus: int = 0
    times: int = 1

    def at(self, size: int) -> int:
        """Return the dimension where the followed one is ``size``."""
        return (size + self.add) // self.floordiv * self.times + self.plus


Dimension = int | str | Scaled
"""A fixed size, a free symbol such as ``"N"`` or ``"H"``, or a function of one."""


@attrs.frozen
class Port:
    """One tensor that enters or leaves a component.

    Attributes:
        shape: One dimension an axis. ``"N"`` is the batch and stands first where the layout begins with it; a tensor
            that all images share has no ``"N"``.
        range: ``"nonnegative"`` (post-ReLU), ``"signed"``, or ``"any"`` where nothing is known.
        pooled: True where the spatial axes were already averaged away.
        prefix_tokens: Class or register tokens before the patch tokens (``NLC`` only).
        measured: Examples, input size ``"32x32"`` to the sizes of ``spatial`` seen at this port.
        multiple_of: Step in pixels in which free image sizes are taken (image ports only): 32 where only multiples
            of 32 are.
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
            return tuple(axis for axis, one in enumerate(self.shape) if _follows_image(one))
        return _SPATIAL_AXES[self.layout]

    @property
    def spatial(self) -> tuple[Dimension, ...]:
        """The spatial dimensions, the token count, nothing for a vector; for ``"other"``, all that follow the image."""
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
    """A class by name, with other names that mean the same (``automobile`` is ``car``)."""

    name: str
    same_as: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All names of this class."""
        return frozenset((self.name, *self.same_as))


@attrs.frozen
class Data:
    """What the images must look like and which classes come out.

    Attributes:
        size: Height and width in pixels.
        channels: ``"L"`` (grey) or ``"RGB"``.
        mean: Per channel, on the scale 0 to 1.
        std: Per channel, on the scale 0 to 1.
        interpolation: How images are resized: ``"nearest"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
        labels: Classes in the order of the outputs; None for a component without classes.
        crop_pct: Share of the resized image that is kept: it is resized to ``size / crop_pct``, and ``size`` is cut
            out of the middle.
        crop_mode: ``"squash"`` resizes to exactly that; ``"center"`` keeps the aspect ratio and covers it (timm's).
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
    """Something two parts were both trained against, by digest; equal digests are a shared anchor.

    Attributes:
        kind: ``"initial_weights"`` (whole network without its class layer) or ``"auxiliary_head"``.
        digest: Tensor digest, ``"tensors:sha256:..."``.
        task: For auxiliary heads: ``"dcc"``, ``"rotation"``, ...
        classes: For auxiliary heads that classify: what their outputs mean. For initial weights that the class layer
            shares: the classes of this network's rows.
    """

    kind: Literal["initial_weights", "auxiliary_head"]
    digest: str
    task: str | None = None
    classes: tuple[Label, ...] | None = None


@attrs.frozen
class Protocol:
    """How the component was trained, as far as it matters for recombination.

    Attributes:
        normalisation: ``"batch"`` where the module holds batch normalisation, so that statistics must be
            taken from a batch or estimated anew after recombination; else ``"none"``.
        frozen_stages: Stages of the network, from the image on, that kept the weights and statistics that they began
            with. A manifest names them only where there are some.
    """

    normalisation: Literal["batch", "none"]
    anchors: tuple[Anchor, ...] = ()
    frozen_stages: int = attrs.field(default=0, metadata={"absent_where_default": True})


@attrs.frozen
class Probe:
    """A fingerprint of the function: a fixed input, projected output, relative tolerance.

    Attributes:
        shapes: Shape of the fixed input, one for each input port.
    """

    input: str
    shapes: tuple[tuple[int, ...], ...]
    sketch: tuple[float, ...]
    relative_tolerance: float
    digest: str


@attrs.frozen
class FeatureStatistics:
    """What the features at one port look like on training images, in eval mode.

    Attributes:
        mean: Over all images, channels and positions.
        std: Over the same.
        samples: Count of images.
        per_channel: Edge ``{"blob": "sha256:...", "bytes": n}`` to the mean of every channel, then the standard
            deviation of every channel, little-endian float32; None where it was not kept.
    """

    mean: float
    std: float
    samples: int
    per_channel: Mapping[str, Any] | None = None


@attrs.frozen
class Statistical:
    """Statistics of the features, one for each feature port in order (None until measured), and the probe.

    An extractor states them of what it gives, a head of what it was trained on.
    """

    features: tuple[FeatureStatistics, ...] | None = None
    probe: Probe | None = None


@attrs.frozen
class Blueprint:
    """How to rebuild a component's module without any stored code.

    Attributes:
        builder: Registered builder, for example ``"timm"``.
        library: Library and version that built it, for example ``"timm 1.0.31"``.
        model: Name the builder knows.
        kwargs: JSON values for the builder.
        split: Split point: a module path, or ``"forward_features"`` for the canonical cut.
        side: ``"extractor"``, ``"head"`` (auxiliary heads are built as heads), ``"adapter"`` (not cut at all), or
            ``"recombination"`` (put together from components).
        approach: How the cut is made: ``"fx"``, ``"declared"``, ``"stopped"`` or ``"canonical"``; ``"whole"`` for an
            adapter or a recombination.
        traced_size: Height and width of the image that was traced.
        cut_outputs: Number of tensors that cross.
        width: Channels that cross where they are not the network's own: the extractor ends with a 1x1 convolution to
            so many, and a head whose network has another width begins with one from so many to its own. None where the
            network's own features cross. A manifest names it only where it is stated.
        entries: Of a head: linear layers that take the features, by path, with the channels that come where these are
            not the network's own; each has a bias. A manifest names them only where there are some.
    """

    builder: str
    library: str
    model: str
    kwargs: Mapping[str, Any]
    split: str
    side: Literal["extractor", "head", "adapter", "recombination"]
    approach: str
    traced_size: tuple[int, int]
    cut_outputs: int = 1
    width: int | None = attrs.field(default=None, metadata={"absent_where_default": True})
    entries: tuple[tuple[str, int], ...] = attrs.field(default=(), metadata={"absent_where_default": True})

    @property
    def takes_images(self) -> bool:
        """Whether images enter, and not features."""
        return self.side in ("extractor", "recombination")

    @property
    def is_cut(self) -> bool:
        """Whether a builder makes it, as one side of a network."""
        return self.side in ("extractor", "head")


@attrs.frozen
class Contract:
    """The four stored levels; the fifth, evidence, is kept apart because it grows.

    Attributes:
        adapters: Of a recombination: what stands between its parts, in order.
    """

    structural: Structural
    data: Data
    protocol: Protocol
    statistical: Statistical = Statistical()
    adapters: tuple[Blueprint, ...] = ()
