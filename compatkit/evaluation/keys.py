"""What a figure depends on beside the two functions: the key that it is kept under, and when a kept one is stale.

What changes nothing is left out, so that it makes no other cell: with stored statistics, or without batch
normalisation, neither the policy's batches nor the seed of their order; with one batch of all images no order. What
is left to the machine (device, threads, version of torch) is recorded beside the figures and not part of the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compatkit.contracts import evidence as cells
from compatkit.contracts.evidence import ADAPTED

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


def circumstances(
    *,
    policy: str,
    batch_size: int,
    seed: int,
    precision: str,
    data: str,
    data_digest: str,
    images: int,
    normalised: bool,
    bound: str,
    sample: bool = False,
    adapters: Sequence[tuple[str, str]] = (),
) -> Settings:
    """Return the settings of a cell that decide its key.

    Args:
        policy: Normalisation policy.
        batch_size: Largest batch.
        seed: Of the order of the images.
        precision: ``"float32"`` or ``"bfloat16"``.
        data: Name of the images, such as ``"mnist/test"``.
        data_digest: Of exactly the images that are measured on, a sample as itself.
        images: How many there are, of all classes.
        normalised: Whether either part holds batch normalisation.
        bound: Function digest of the head that gives the bound, else empty.
        sample: Whether the images are some of those of that name.
        adapters: Function digest and words of each that stands between, in order.
    """
    beside: Settings = {SAMPLE: True} if sample else {}
    if adapters:
        beside |= {
            ADAPTED: "; ".join(words for _, words in adapters),
            FUNCTIONS: " ".join(function for function, _ in adapters),
        }
    return {
        "metric": cells.METRIC,
        "metric_version": cells.METRIC_VERSION,
        "policy": policy,
        "batch_size": batch_size,
        "seed": seed,
        "precision": precision,
        "data": data,
        "data_digest": data_digest,
        "images": images,
        "normalised": normalised,
        BOUND: bound,
    } | beside


def conditions(settings: Mapping[str, Any]) -> dict[str, Any]:
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


def question(settings: Mapping[str, Any]) -> tuple[Any, ...]:
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
        asked: Key of the cell asked for, from ``conditions``.
        kept: The same of the kept one.
    """
    if asked["bound"] is None:
        return {**kept, "bound": None} == asked
    return kept == asked


def moved(asked: Mapping[str, Any], kept: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
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
