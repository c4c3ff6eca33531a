"""Smoke: gray frames of simulated plumes; and colored ones that look as if a camera had captured them.

After "Reviving Autoencoder Pretraining", C.2: 20 simulations of 120 frames with random inflow, a tenth of the
simulations for training. The paper simulates with mantaflow in 64x64. Its captures (ScalarFlow, Eckert et al. 2019) are
photographs of smoke, which ``captured_smoke`` imitates: plumes of other parameters, seen through a blurred lens, on a
dark, tinted and slightly noisy ground.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from compatkit import DataSet, hookimpl
from compatkit.errors import DataError
from compatkit.foundation.limits import WHOLE, Number
from compatkit.hooks import Register

from ._fluid import Field, Flow, simulate

compatkit_api = 1
GRAY, CAPTURED = Flow(buoyancy=0.1), Flow(buoyancy=0.05, confinement=0.35, dissipation=0.004, drag=0.01)
CLASSES = ("earlier", "later")
"""Halves of a simulation: every data set has classes, and these need only the frames."""


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``smoke`` and ``captured-smoke``."""
    register("smoke", lambda root=None, download=False: smoke())
    register("captured-smoke", lambda root=None, download=False: captured_smoke())


@lru_cache(maxsize=4)
def smoke(*, simulations: int = 20, frames: int = 120, size: int = 64, seed: int = 0) -> DataSet:
    """Return gray frames; equal calls share one result.

    Args:
        simulations: Number of simulations, at least 2; a tenth of them, and at least one, are for training.
        frames: Frames of each simulation, at least 2.
        size: Pixels per side, at least 16.
        seed: Seed of all draws.

    Raises:
        DataError: A number is below its least value.
    """
    density = _density(simulations, frames, size, GRAY, seed)
    return _divided("smoke", np.rint(255 * density.clip(0, 1))[..., None].astype(np.uint8))


@lru_cache(maxsize=4)
def captured_smoke(*, simulations: int = 20, frames: int = 125, size: int = 64, seed: int = 0) -> DataSet:
    """Return colored frames that look captured, 2,500 as in the paper; see ``smoke``.

    Raises:
        DataError: A number is below its least value.
    """
    WHOLE.check("Smoke", DataError, seed=seed)
    density = _density(simulations, frames, size, CAPTURED, seed + 1)
    images = np.empty((*density.shape, 3), np.uint8)
    for number, plume in enumerate(density):
        rng = np.random.default_rng([seed, 77, number])
        opacity = 1 - np.exp(-1.2 * gaussian_filter(plume, (0, 1.2, 1.2)))
        light = rng.uniform((0.75, 0.7, 0.65), (1.0, 0.95, 0.9))
        ground = rng.uniform(0.02, 0.12, 3) * np.linspace(0.6, 1.2, size)[None, :, None, None]
        color = ground + opacity[..., None] * (light - ground)
        color = color + 0.015 * rng.standard_normal(color.shape)
        images[number] = np.rint(255 * color.clip(0, 1))
    return _divided("captured-smoke", images)


def _density(simulations: int, frames: int, size: int, flow: Flow, seed: int) -> Field:
    Number(least=2, whole=True).check("Smoke", DataError, simulations=simulations, frames=frames)
    Number(least=16, whole=True).check("Smoke", DataError, size=size)
    WHOLE.check("Smoke", DataError, seed=seed)
    return simulate(simulations, frames, size, flow, seed)[:, :, 2]


def _divided(name: str, frames: NDArray[np.uint8]) -> DataSet:
    """Divide frames ``(simulations, frames, height, width, channels)`` by simulation."""
    count = max(1, len(frames) // 10)
    parts = [part.reshape(-1, *part.shape[2:]) for part in (frames[:count], frames[count:])]
    half = np.arange(frames.shape[1]) * 2 // frames.shape[1]
    labels = [np.tile(half, len(part) // len(half)) for part in parts]
    return DataSet.of(name, (parts[0], labels[0]), (parts[1], labels[1]), CLASSES)
