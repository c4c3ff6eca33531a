"""What a figure depends on besides the two functions: conditions, its key, and when it is stale.

What changes nothing is left out of a key: with stored statistics, or without batch normalisation, both the policy's
batches and the seed of their order; with one batch of all images the order. Device, threads and version of torch are
recorded beside the figures and are not part of the key.
Plain values, checked without torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts import evidence as cells
from compatkit.contracts.batchnorm import DEFAULT, check_policy, estimates
from compatkit.contracts.evidence import ADAPTED
from compatkit.errors import UsageError, suggest

if TYPE_CHECKING:
    from compatkit.data.split import Split

Progress = Callable[[int, int, str], None]
"""Called with what is done, how much there is in all, and what is being done."""
PRECISIONS = ("float32", "bfloat16")
FUNCTIONS = "adapter_functions"
"""The setting with the function digests of the adapters, in order, with a blank between two."""
BOUND = "bound_head"
"""The setting with the function digest of the head that gives the bound; empty where there is none."""
SAMPLE = "sample"
"""The setting of figures on some of the images of a name; absent where they are all."""
Settings = dict[str, str | int | float]
_WHAT = {
    "metric_version": "the metric {metric} moved from version {old} to {new}",
    "data": "the images of {name} are others now ({old}, now {new})",
    "bound": "the bound is of another head now ({old}, now {new})",
}


@attrs.frozen
class ImageFacts:
    """The images that an extractor is measured on, without their pixels.

    Attributes:
        name: Such as ``"mnist/test"``.
        digest: ``data:sha256:...``, of exactly these images with their labels, in their order.
        count: Of all images.
        counts: Images of each class by its name; None where the images are not at hand.
        sample: Whether they are some of those of that name.
    """

    name: str
    digest: str
    count: int
    counts: Mapping[str, int] | None = None
    sample: bool = False

    @classmethod
    def of(cls, split: Split) -> ImageFacts:
        """Return the facts of a split."""
        counts = dict(zip(split.classes, split.counts, strict=True))
        return cls(split.name, split.digest, len(split), counts, split.sample)


def _whole(value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise UsageError(f"expected a whole number, got {value!r:.80}.", subject=value) from None


def _precision(name: str) -> str:
    if name == "bf16":  # as a trainer spells it
        return "bfloat16"
    if name in PRECISIONS:
        return name
    hint = suggest(name, PRECISIONS)
    raise UsageError(f"Unknown precision {name!r}; expected {' or '.join(PRECISIONS)}.{hint}")


@attrs.frozen
class Conditions:
    """What the figures of a measurement depend on, besides parts and images.

    Attributes:
        policy: Whose statistics batch normalisation uses.
            ``"batch"``: those of each batch, formed from all images of the split. ``"reestimate"``: of extractor and
            head anew from the same images, unlabelled; ``"mix:16"``: these mixed with the stored ones, which count as
            16 images. ``"running"``: as stored.
        batch_size: Largest batch; the images are split into equal batches up to it.
        seed: Of the order of the images.
        precision: ``"float32"`` (TF32 off) or ``"bfloat16"`` (autocast; also written ``"bf16"``).
        device: Where to run; modules return to where they were.

    Raises:
        UsageError: A value is unknown, or the batch size is below 1.
    """

    policy: str = attrs.field(default=DEFAULT, converter=check_policy)
    batch_size: int = attrs.field(default=256, converter=_whole)
    seed: int = attrs.field(default=0, converter=_whole)
    precision: str = attrs.field(default="float32", converter=_precision)
    device: str = "cpu"

    def __attrs_post_init__(self) -> None:
        """Check what no converter checks."""
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {self.batch_size}.")

    def passes(self, count: int) -> int:
        """Return how many batches one extractor runs over ``count`` images."""
        return (2 if estimates(self.policy) else 1) * -(-count // self.batch_size)

    def settings(
        self, images: ImageFacts, *, normalised: bool, bound: str, adapters: Sequence[tuple[str, str]] = ()
    ) -> Settings:
        """Return the settings of a cell that decide its key.

        Args:
            images: That it is measured on.
            normalised: Whether either part holds batch normalisation.
            bound: Function digest of the head that gives the bound, else empty.
            adapters: Function digest and words of each that stands between, in order.
        """
        beside: Settings = {SAMPLE: True} if images.sample else {}
        if adapters:
            beside |= {
                ADAPTED: "; ".join(words for _, words in adapters),
                FUNCTIONS: " ".join(function for function, _ in adapters),
            }
        return {
            "metric": cells.METRIC,
            "metric_version": cells.METRIC_VERSION,
            "policy": self.policy,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "precision": self.precision,
            "data": images.name,
            "data_digest": images.digest,
            "images": images.count,
            "normalised": normalised,
            BOUND: bound,
        } | beside


def key_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key of a cell: all that its figures depend on beside the two functions, and nothing else.

    Args:
        settings: Of a cell.

    Returns:
        ``metric``, ``metric_version``, ``data`` (digest), ``normalisation`` (``"none"`` where no part has any),
        ``batches`` and ``seed`` (None where they change nothing), ``precision``, ``adapters`` (function digests) and
        ``bound`` (function digest of the head that gives it, or None).
    """
    batches = -(-settings["images"] // settings["batch_size"]) if _batched(settings) else None
    return {
        "metric": settings["metric"],
        "metric_version": settings["metric_version"],
        "data": settings["data_digest"],
        "normalisation": _normalisation(settings),
        "batches": batches,
        "seed": settings["seed"] if batches is not None and batches > 1 else None,
        "precision": settings["precision"],
        "adapters": _functions(settings),
        "bound": settings[BOUND] or None,
    }


def question_of(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what was asked: the same for a figure and for the one that replaces it once something moved.

    The name of the images stands for whatever they are now, but for samples, of which there are many; neither the
    version of the metric nor the bound counts.
    """
    data = settings["data_digest"] if settings.get(SAMPLE) else settings["data"]
    order = (settings["batch_size"], settings["seed"]) if _batched(settings) else ()
    asked = settings["metric"], data, _normalisation(settings), settings["precision"]
    return *asked, *_functions(settings), *order


def is_kept(asked: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Tell whether a kept figure is of exactly the conditions asked for.

    Where no head is at hand that would give a bound, one that was measured with its bound is that figure too.

    Args:
        asked: Key of the cell asked for, from ``key_of``.
        kept: The same of the kept one.
    """
    if asked["bound"] is None:
        return {**kept, "bound": None} == asked
    return kept == asked


def stale_reason(asked: Mapping[str, Any], kept: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return why a kept figure of the same question is not the one asked for.

    Args:
        asked: Key of the cell asked for.
        kept: Key of the kept one.
        settings: Of the kept one.
    """
    found = [
        text.format(
            metric=settings["metric"], name=settings["data"], old=_short(kept[name]), new=_short(asked[name])
        )
        for name, text in _WHAT.items()
        if kept[name] != asked[name] and not (name == "bound" and asked[name] is None)
    ]
    return "; ".join(found)


def _batched(settings: Mapping[str, Any]) -> bool:
    return bool(settings["normalised"]) and settings["policy"] != "running"


def _normalisation(settings: Mapping[str, Any]) -> str:
    return settings["policy"] if settings["normalised"] else "none"


def _functions(settings: Mapping[str, Any]) -> list[str]:
    return str(settings.get(FUNCTIONS, "")).split()


def _short(value: Any) -> str:
    """Return a digest, or a version, in few characters."""
    if value is None:
        return "none"
    front, colon, last = str(value).rpartition(":")
    return f"{front.partition(':')[0]}:{last[:12]}" if colon else last
