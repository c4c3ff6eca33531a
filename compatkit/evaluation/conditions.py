"""Conditions of a measurement, the cache key they give, and when a cached figure is stale.

Settings that cannot change the figures are left out of the key: batches and their order if statistics are stored or
there is no batch normalization; the order if one batch holds all images. Device, threads and the version of torch are
recorded with the figures but are not part of the key. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts import evidence as cells
from compatkit.contracts.batchnorm import DEFAULT, check_policy, estimates
from compatkit.contracts.evidence import ADAPTED
from compatkit.foundation.limits import COUNT, Number, OneOf

if TYPE_CHECKING:
    from compatkit.data.split import Split

Progress = Callable[[int, int, str], None]
"""Progress callback: amount done, total, and what is being done."""
PRECISIONS = ("float32", "bfloat16")
FUNCTIONS = "adapter_functions"
"""Setting with the function digests of the adapters, in order, separated by blanks."""
BOUND = "bound_head"
"""Setting with the function digest of the head that gives the upper bound; empty if there is none."""
SAMPLE = "sample"
"""Setting that identifies a sample of the named images; absent if all are used."""
Settings = dict[str, str | int | float]
_CHANGES = {
    "metric_version": "the metric {metric} changed from version {old} to {new}",
    "data": "the images of {name} have changed ({old}, now {new})",
    "bound": "the bound is that of another head ({old}, now {new})",
}


@attrs.frozen
class ImageFacts:
    """Images that an extractor is measured on, without their pixels.

    Attributes:
        name: Name, such as ``"mnist/test"``.
        digest: ``data:sha256:...`` over images and labels in order.
        count: Number of images.
        counts: Number of images per class name; None if the images are not available.
        sample: Whether they are a sample of those with that name.
    """

    name: str
    digest: str
    count: int
    counts: Mapping[str, int] | None = None
    sample: bool = False

    @classmethod
    def of(cls, split: Split) -> ImageFacts:
        """Return the properties of a split."""
        counts = dict(zip(split.classes, split.counts, strict=True))
        return cls(split.name, split.digest, len(split), counts, split.sample)


def _precision(name: Any) -> Any:
    return "bfloat16" if name == "bf16" else name  # as a trainer spells it


@attrs.frozen
class Conditions:
    """Settings that the figures of a measurement depend on, besides parts and images.

    Attributes:
        bn_policy: Batch-norm policy. ``"batch"``: statistics of each batch. ``"reestimate"``: estimated for extractor
            and head on the same images, unlabeled. ``"mix:16"``: the estimate mixed with stored statistics that count
            as 16 images. ``"running"``: stored statistics.
        batch_size: Largest batch; the images are split into batches of nearly equal size.
        seed: Seed of the order of the images.
        precision: ``"float32"`` (TF32 off) or ``"bfloat16"`` (autocast; also written ``"bf16"``).
        device: Device to run on; modules are moved back afterwards.
        channels_last: Images and weights of convolutions as NHWC in memory. Figures are equal but for rounding; it is
            no part of the key, as the device is none.

    Raises:
        UsageError: A value is unknown, or the batch size is below 1.
    """

    bn_policy: str = attrs.field(default=DEFAULT, converter=check_policy)
    batch_size: int = attrs.field(default=256, validator=COUNT)
    seed: int = attrs.field(default=0, validator=Number(whole=True))
    precision: str = attrs.field(default="float32", converter=_precision, validator=OneOf(PRECISIONS))
    device: str = "cpu"
    channels_last: bool = False

    def passes(self, count: int) -> int:
        """Return the number of batches that one extractor runs for ``count`` images."""
        return (2 if estimates(self.bn_policy) else 1) * -(-count // self.batch_size)

    def settings(
        self, images: ImageFacts, *, batch_norm: bool, bound: str, adapters: Sequence[tuple[str, str]] = ()
    ) -> Settings:
        """Return the settings of a cell that determine its key.

        Args:
            images: Images that it is measured on.
            batch_norm: Whether either part contains batch normalization.
            bound: Function digest of the head that gives the upper bound, or empty.
            adapters: Function digest and description of each adapter, in order.
        """
        settings: Settings = {
            "metric": cells.METRIC,
            "metric_version": cells.METRIC_VERSION,
            "policy": self.bn_policy,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "precision": self.precision,
            "data": images.name,
            "data_digest": images.digest,
            "images": images.count,
            "normalised": batch_norm,
            BOUND: bound,
        }
        if images.sample:
            settings[SAMPLE] = True
        if adapters:
            settings[ADAPTED] = "; ".join(description for _, description in adapters)
            settings[FUNCTIONS] = " ".join(function for function, _ in adapters)
        return settings


def key_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cache key of a cell: all that its figures depend on besides the two functions.

    Args:
        settings: Settings of the cell.

    Returns:
        ``metric``, ``metric_version``, ``data`` (digest), ``normalisation`` (``"none"`` without batch normalization),
        ``batches`` and ``seed`` (None if irrelevant), ``precision``, ``adapters`` (function digests) and ``bound``
        (function digest of the head that gives it, or None).
    """
    batches = -(-settings["images"] // settings["batch_size"]) if _batched(settings) else None
    return {
        "metric": settings["metric"],
        "metric_version": settings["metric_version"],
        "data": settings["data_digest"],
        "normalisation": _normalization(settings),
        "batches": batches,
        "seed": settings["seed"] if batches is not None and batches > 1 else None,
        "precision": settings["precision"],
        "adapters": _functions(settings),
        "bound": settings[BOUND] or None,
    }


def question_of(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the question a figure answers: equal for a figure and its replacement after a change.

    Unlike the key it ignores the metric's version, the bound, and the digest of the images (except for samples, of
    which there are many with one name).
    """
    data = settings["data_digest"] if settings.get(SAMPLE) else settings["data"]
    order = (settings["batch_size"], settings["seed"]) if _batched(settings) else ()
    measured = settings["metric"], data, _normalization(settings), settings["precision"]
    return *measured, *_functions(settings), *order


def is_kept(requested: Mapping[str, Any], cached: Mapping[str, Any]) -> bool:
    """Return whether a cached figure holds under exactly the requested conditions.

    If no head is available for an upper bound, a figure measured with a bound is accepted, too.

    Args:
        requested: Key of the requested cell, from ``key_of``.
        cached: Key of the cached cell.
    """
    if requested["bound"] is None:
        return {**cached, "bound": None} == requested
    return cached == requested


def stale_reason(requested: Mapping[str, Any], cached: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return why a cached figure for the same question is stale.

    Args:
        requested: Key of the requested cell.
        cached: Key of the cached cell.
        settings: Settings of the cached cell.
    """
    reasons = []
    for name, text in _CHANGES.items():
        old, new = cached[name], requested[name]
        if old != new and not (name == "bound" and new is None):
            subjects = {"metric": settings["metric"], "name": settings["data"]}
            reasons.append(text.format(**subjects, old=_short(old), new=_short(new)))
    return "; ".join(reasons)


def _batched(settings: Mapping[str, Any]) -> bool:
    return bool(settings["normalised"]) and settings["policy"] != "running"


def _normalization(settings: Mapping[str, Any]) -> str:
    return settings["policy"] if settings["normalised"] else "none"


def _functions(settings: Mapping[str, Any]) -> list[str]:
    return str(settings.get(FUNCTIONS, "")).split()


def _short(value: Any) -> str:
    """Return an abbreviated digest or version."""
    if value is None:
        return "none"
    front, colon, last = str(value).rpartition(":")
    return f"{front.partition(':')[0]}:{last[:12]}" if colon else last
