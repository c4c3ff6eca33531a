"""Forecasts as images: the fields of a sample one below the other, the ones to forecast last.

A sample of f fields of h x w is one gray image of f h x w pixels. Values are standard deviations from the mean, from
-4 to 4, in 255 steps: what lies outside is clipped, and rounding adds an error of .009 standard deviations. That is an
approximation, which ``stacked`` and ``unstacked`` let measure.

``flow_forecasts`` are made of simulated smoke: velocity and density in a box that is closed below and above and goes
around sideways, as the atmosphere's latitudes and longitudes do. They stand in for weather where there is none to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.data.checking import LARGEST_SIDE
from compatkit.data.dataset import DataSet
from compatkit.data.fluid import Flow
from compatkit.data.smoke_images import simulated
from compatkit.data.transforms import Images
from compatkit.errors import DataError
from compatkit.limits import COUNT, WHOLE, Number

SPAN = 8.0
"""Standard deviations from black to white."""
CLASSES = ("earlier", "later")
FLOW = Flow(buoyancy=0.06, dissipation=0.02)


def stacked(fields: NDArray[Any]) -> Images:
    """Return standardized fields as images.

    Args:
        fields: ``(n, fields, height, width)``.

    Returns:
        uint8 ``(n, fields * height, width, 1)``.

    Raises:
        DataError: Values that are no finite numbers, another shape, or more rows than an image has at most.
    """
    if fields.ndim != 4 or not np.isfinite(fields).all():
        raise DataError(
            f"Fields are finite numbers (n, fields, height, width); got the shape {fields.shape}, "
            f"{np.size(fields) - np.isfinite(fields).sum():,} values not finite."
        )
    rows = fields.shape[1] * fields.shape[2]
    if rows > LARGEST_SIDE:
        raise DataError(
            f"{fields.shape[1]} fields of {fields.shape[2]} rows are {rows} rows; an image has {LARGEST_SIDE} at most."
        )
    pixels = np.rint(255 * (fields / SPAN + 0.5).clip(0, 1)).astype(np.uint8)
    return pixels.reshape(len(fields), rows, -1, 1)


def unstacked(images: NDArray[Any], fields: int) -> NDArray[Any]:
    """Return the fields of images, ``(n, fields, height, width)``, in standard deviations."""
    shape = len(images), fields, images.shape[1] // fields, images.shape[2]
    return (images.reshape(shape).astype(np.float32) / 255 - 0.5) * np.float32(SPAN)


def samples(
    series: NDArray[np.float32], at: Sequence[int], back: Sequence[int], lead: int, wanted: Sequence[int]
) -> NDArray[np.float32]:
    """Return what is known at some times, with what should be forecast from it.

    Args:
        series: ``(times, fields, height, width)``.
        at: Times t.
        back: Steps before t of the known fields, such as ``(0, 1, 2)``.
        lead: Steps after t of the forecast.
        wanted: Fields to forecast.

    Returns:
        ``(len(at), len(back) * fields + len(wanted), height, width)``.
    """
    times = np.asarray(at)
    known = [series[times - one] for one in back]
    return np.concatenate([*known, series[times + lead][:, list(wanted)]], axis=1)


def flow_forecasts(
    *,
    simulations: int = 24,
    each: int = 30,
    size: int = 32,
    lead: int = 8,
    back: Sequence[int] = (0, 4, 8),
    seed: int = 0,
    name: str = "flow-forecasts",
) -> DataSet:
    """Return forecasts of velocity across, velocity down and smoke, ``lead`` frames ahead of some earlier states.

    Equal calls share one result.

    Args:
        simulations: Count, at least 2; a quarter of them are for training, whose mean and deviation of each field
            standardize all.
        each: Samples of a simulation, two frames apart.
        size: Cells a side; flows are simulated with twice as many.
        lead: Frames from the last known state to the forecast.
        back: Frames before it of the known states.
        seed: Equal seeds give equal images.
        name: Of the data set.

    Raises:
        DataError: A count is below its least value.
    """
    Number(least=2, whole=True).check("Forecasts", DataError, simulations=simulations, each=each)
    Number(least=8, whole=True).check("Forecasts", DataError, size=size)
    COUNT.check("Forecasts", DataError, lead=lead)
    WHOLE.check("Forecasts", DataError, seed=seed)
    if not back:
        raise DataError(
            "Forecasts need one known state at least; back is empty. Name frames, such as (0, 4, 8)."
        )
    for one in back:
        WHOLE.check("Forecasts", DataError, back=one)
    return _flow_forecasts(simulations, each, size, lead, tuple(back), seed, name)


@lru_cache(maxsize=2)
def _flow_forecasts(
    simulations: int, each: int, size: int, lead: int, back: tuple[int, ...], seed: int, name: str
) -> DataSet:
    frames = max(back) + 2 * each + lead
    fine = simulated(simulations, frames, 2 * size, FLOW, seed)
    series = fine.reshape(*fine.shape[:3], size, 2, size, 2).mean((4, 6))
    count = max(1, simulations // 4)
    mean, std = (getattr(series[:count], one)((0, 1, 3, 4), keepdims=True) for one in ("mean", "std"))
    series = (series - mean) / std
    at = range(max(back), max(back) + 2 * each, 2)
    found = [stacked(samples(one, at, back, lead, range(3))) for one in series]
    half = np.arange(each) * 2 // each
    parts = [(np.concatenate(part), np.tile(half, len(part))) for part in (found[:count], found[count:])]
    return DataSet.of(name, parts[0], parts[1], CLASSES)
