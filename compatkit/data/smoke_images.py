"""Smoke: frames of simulated plumes, gray; and the same in color, as if captured by a camera.

In the way of "Reviving Autoencoder Pretraining", C.2: 20 simulations of 120 frames with random inflow, a tenth of the
simulations for training. The paper's are of mantaflow in 64x64; these are drawn by ``fluid``. Its captures (ScalarFlow,
Eckert et al. 2019) are photographs of smoke: ``captured_smoke`` only stands in for them. It is simulated with other
parameters, seen through a blurred lens, on a dark, tinted and slightly noisy ground.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

from compatkit.data.dataset import DataSet
from compatkit.data.fluid import Field, Flow, Fluid
from compatkit.data.transforms import Images
from compatkit.errors import DataError
from compatkit.limits import WHOLE, Number

WARM = 24
"""Frames before the first one that is kept: the first are nearly empty."""
GRAY, CAPTURED = Flow(buoyancy=0.1), Flow(buoyancy=0.05, confinement=0.35, dissipation=0.004, drag=0.01)
CLASSES = ("earlier", "later")
"""Halves of a simulation: every data set has classes, and these need no more than the frames."""


def simulated(simulations: int, frames: int, size: int, flow: Flow, seed: int) -> Field:
    """Return velocities and smoke of random plumes, float32 ``(simulations, frames, 3, size, size)``.

    Each has one to three sources near the ground, whose place, width and strength are drawn and whose strength
    flickers, in air that is stirred by a random smooth wind.

    Args:
        simulations: Count; each depends on the seed and its number alone.
        frames: Kept of each.
        size: Cells a side.
        flow: Parameters.
        seed: Of all draws.
    """
    draws = [np.random.default_rng([seed, number]) for number in range(simulations)]
    fluid = Fluid.still(simulations, size, size)
    wind = np.stack([_wind(draw, size) for draw in draws])
    fluid.across, fluid.down = wind[:, 0], wind[:, 1]
    sources = np.stack([_sources(draw, size) for draw in draws])
    phases = np.stack([draw.uniform(0, 2 * np.pi, 3) for draw in draws])
    rates = np.stack([draw.uniform(0.1, 0.6, 3) for draw in draws])
    found = np.empty((simulations, frames, 3, size, size), np.float32)
    for step in range(WARM + frames):
        flicker = 1 + 0.6 * np.sin(rates * step + phases)
        fluid.step(flow, np.einsum("ns,nshw->nhw", flicker.astype(np.float32), sources))
        if step >= WARM:
            found[:, step - WARM] = np.stack([fluid.across, fluid.down, fluid.smoke], 1)
    return found


def _wind(draw: np.random.Generator, size: int) -> Field:
    noise = draw.standard_normal((2, size, size))
    ends: Any = ("wrap", "nearest", "wrap")
    smooth = gaussian_filter(noise, (0, size / 10, size / 10), mode=ends)
    return (0.4 * smooth / (np.abs(smooth).max() + 1e-9)).astype(np.float32)


def _sources(draw: np.random.Generator, size: int) -> Field:
    """Return the inflow of three sources, some of them empty, ``(3, size, size)``."""
    middles = np.arange(size) + 0.5
    found = np.zeros((3, size, size), np.float32)
    for place in range(int(draw.integers(1, 4))):
        row, column = size * draw.uniform(0.82, 0.95), size * draw.uniform(0.2, 0.8)
        radius, strength = size * draw.uniform(0.03, 0.07), draw.uniform(0.06, 0.16)
        away = (middles[:, None] - row) ** 2 + (middles - column) ** 2
        found[place] = strength * np.exp(-away / (2 * radius**2))
    return found


@lru_cache(maxsize=4)
def smoke(
    *, simulations: int = 20, frames: int = 120, size: int = 64, seed: int = 0, name: str = "smoke"
) -> DataSet:
    """Return gray frames; equal calls share one result.

    Args:
        simulations: Count, at least 2; a tenth of them, and at least one, are for training.
        frames: Of each.
        size: Pixels a side.
        seed: Equal seeds give equal images.
        name: Of the data set.

    Raises:
        DataError: A count is below its least value.
    """
    return _divided(name, _gray(_smoke(simulations, frames, size, GRAY, seed)))


@lru_cache(maxsize=4)
def captured_smoke(
    *, simulations: int = 20, frames: int = 125, size: int = 64, seed: int = 0, name: str = "captured-smoke"
) -> DataSet:
    """Return colored, captured-looking frames, 2,500 as in the paper; see ``smoke``.

    Raises:
        DataError: A count is below its least value.
    """
    WHOLE.check("Smoke", DataError, seed=seed)
    density = _smoke(simulations, frames, size, CAPTURED, seed + 1)
    found = np.empty((*density.shape, 3), np.uint8)
    for number, plume in enumerate(density):
        draw = np.random.default_rng([seed, 77, number])
        seen = 1 - np.exp(-1.2 * gaussian_filter(plume, (0, 1.2, 1.2)))
        light = draw.uniform((0.75, 0.7, 0.65), (1.0, 0.95, 0.9))
        ground = draw.uniform(0.02, 0.12, 3) * np.linspace(0.6, 1.2, size)[None, :, None, None]
        color = ground + seen[..., None] * (light - ground)
        color = color + 0.015 * draw.standard_normal(color.shape)
        found[number] = np.rint(255 * color.clip(0, 1))
    return _divided(name, found)


def _smoke(simulations: int, frames: int, size: int, flow: Flow, seed: int) -> Field:
    Number(least=2, whole=True).check("Smoke", DataError, simulations=simulations, frames=frames)
    Number(least=16, whole=True).check("Smoke", DataError, size=size)
    WHOLE.check("Smoke", DataError, seed=seed)
    return simulated(simulations, frames, size, flow, seed)[:, :, 2]


def _gray(density: Field) -> Images:
    return np.rint(255 * density.clip(0, 1))[..., None].astype(np.uint8)


def _divided(name: str, frames: Images) -> DataSet:
    """Divide frames ``(simulations, frames, height, width, channels)`` by simulation."""
    count = max(1, len(frames) // 10)
    parts = [part.reshape(-1, *part.shape[2:]) for part in (frames[:count], frames[count:])]
    half = np.arange(frames.shape[1]) * 2 // frames.shape[1]
    labels = [np.tile(half, len(part) // len(half)) for part in parts]
    return DataSet.of(name, (parts[0], labels[0]), (parts[1], labels[1]), CLASSES)
