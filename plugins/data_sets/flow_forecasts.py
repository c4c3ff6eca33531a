"""Flow forecasts: velocity and density of simulated smoke, some frames ahead of earlier states.

The box is closed below and above and periodic sideways, as the latitudes and longitudes of the atmosphere are. The
forecasts replace weather data where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from compatkit import DataSet, hookimpl
from compatkit.errors import DataError
from compatkit.foundation.limits import COUNT, WHOLE, Number
from compatkit.hooks import Register

from ._fluid import Flow, simulate
from ._forecasts import CLASSES, samples, stack

compatkit_api = 1
FLOW = Flow(buoyancy=0.06, dissipation=0.02)


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``flow-forecasts``."""
    register("flow-forecasts", lambda root=None, download=False: flow_forecasts())


def flow_forecasts(
    *,
    simulations: int = 24,
    each: int = 30,
    size: int = 32,
    lead: int = 8,
    back: Sequence[int] = (0, 4, 8),
    seed: int = 0,
) -> DataSet:
    """Return forecasts of velocity across, velocity down and smoke, ``lead`` frames ahead of earlier states.

    Equal calls share one result.

    Args:
        simulations: Number of simulations, at least 2. A quarter of them are for training; the mean and deviation of
            their fields standardize all.
        each: Samples of a simulation, two frames apart.
        size: Cells per side; flows are simulated with twice as many.
        lead: Frames from the last known state to the forecast.
        back: Frames before it of the known states.
        seed: Seed of all draws.

    Raises:
        DataError: A number is below its least value.
    """
    Number(least=2, whole=True).check("Forecasts", DataError, simulations=simulations, each=each)
    Number(least=8, whole=True).check("Forecasts", DataError, size=size)
    COUNT.check("Forecasts", DataError, lead=lead)
    WHOLE.check("Forecasts", DataError, seed=seed)
    if not back:
        raise DataError(
            "Forecasts need one known state at least; back is empty. Name frames, such as (0, 4, 8)."
        )
    for frames in back:
        WHOLE.check("Forecasts", DataError, back=frames)
    return _flow_forecasts(simulations, each, size, lead, tuple(back), seed)


@lru_cache(maxsize=2)
def _flow_forecasts(
    simulations: int, each: int, size: int, lead: int, back: tuple[int, ...], seed: int
) -> DataSet:
    frames = max(back) + 2 * each + lead
    fine = simulate(simulations, frames, 2 * size, FLOW, seed)
    series = fine.reshape(*fine.shape[:3], size, 2, size, 2).mean((4, 6))
    count = max(1, simulations // 4)
    mean, std = (
        getattr(series[:count], statistic)((0, 1, 3, 4), keepdims=True) for statistic in ("mean", "std")
    )
    series = (series - mean) / std
    at = range(max(back), max(back) + 2 * each, 2)
    images = [stack(samples(fields, at, back, lead, range(3))) for fields in series]
    half = np.arange(each) * 2 // each
    train, test = (
        (np.concatenate(part), np.tile(half, len(part))) for part in (images[:count], images[count:])
    )
    return DataSet.of("flow-forecasts", train, test, CLASSES)
