"""Flow in two dimensions by stable fluids: smoke that rises in a box, periodic sideways, with walls below and above.

Papers: Stam (1999), "Stable Fluids" (semi-Lagrangian advection, projection); Fedkiw, Stam, Jensen (2001), "Visual
    Simulation of Smoke" (buoyancy, vorticity confinement).
Equations: with cells and frames as units, u* = u(x - dt u) + dt (buoyancy s e_up + eps (n x w)) with the vorticity w
    and n = grad |w| / |grad |w||, then u = u* - grad p with div u = 0, and s = (1 - dissipation) s(x - dt u) + inflow.
Smoke is not conserved exactly: bilinear advection loses some where a plume is thin.
Projection: exact in the Fourier transform of the box and its mirror image in the walls, through which nothing flows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.ndimage import gaussian_filter

from compatkit.errors import DataError

Field = NDArray[Any]
"""float32."""
WARM = 24
"""Frames before the first one that is kept: the first are nearly empty."""


@attrs.frozen
class Flow:
    """Parameters of a flow.

    Attributes:
        buoyancy: Upward acceleration of smoke of density 1, cells per frame squared.
        confinement: Strength of vorticity confinement, eps; 0 for none.
        dissipation: Share of the smoke that vanishes per frame.
        drag: Share of the velocity that vanishes per frame.
        dt: Frames in a step.
    """

    buoyancy: float = 0.06
    confinement: float = 0.15
    dissipation: float = 0.01
    drag: float = 0.005
    dt: float = 1.0


@attrs.define(eq=False)
class Fluid:
    """Flows that are simulated together: float32 fields ``(flows, height, width)``, row 0 at the top.

    Attributes:
        across: Velocity to the right, cells per frame.
        down: Velocity downwards.
        smoke: Density of smoke.
    """

    across: Field
    down: Field
    smoke: Field

    @classmethod
    def still(cls, flows: int, height: int, width: int) -> Fluid:
        """Return air at rest without smoke.

        Raises:
            DataError: ``flows`` is below 1, or a side has fewer than 4 cells.
        """
        if flows < 1 or min(height, width) < 4:
            raise DataError(
                f"A fluid has at least 1 flow and 4 cells per side; got {flows}, {height}x{width}."
            )
        return cls(*(np.zeros((flows, height, width), np.float32) for _ in range(3)))

    def step(self, flow: Flow, inflow: Field | None = None) -> None:
        """Advance all flows by ``flow.dt``.

        Args:
            flow: Parameters of the flow.
            inflow: Smoke added per frame, ``(flows, height, width)``; None for none.
        """
        rows, columns = _back(self.across, self.down, flow.dt)
        across, down, smoke = sample(np.stack([self.across, self.down, self.smoke]), rows, columns)
        smoke *= 1 - flow.dissipation * flow.dt
        if inflow is not None:
            smoke += flow.dt * inflow
        across *= 1 - flow.drag * flow.dt
        down *= 1 - flow.drag * flow.dt
        down -= flow.dt * flow.buoyancy * smoke
        if flow.confinement:
            push = confinement(across, down)
            across += flow.dt * flow.confinement * push[0]
            down += flow.dt * flow.confinement * push[1]
        self.across, self.down = project(across, down)
        self.smoke = smoke


def _back(across: Field, down: Field, dt: float) -> tuple[Field, Field]:
    """Return the rows and columns that the content of each cell comes from."""
    rows = np.arange(across.shape[1], dtype=np.float32)[:, None] - dt * down
    columns = np.arange(across.shape[2], dtype=np.float32) - dt * across
    return rows, columns


def sample(fields: Field, rows: Field, columns: Field) -> Field:
    """Return fields at other positions by bilinear interpolation, periodic sideways, clamped at the walls.

    Args:
        fields: ``(n, flows, height, width)``.
        rows: Positions in cells, ``(flows, height, width)``.
        columns: Positions in cells, ``(flows, height, width)``.

    Returns:
        In the shape of ``fields``.
    """
    count, flows, height, width = fields.shape
    rows = np.clip(rows, 0, height - 1)
    top, left = np.floor(rows), np.floor(columns)
    low, right = (rows - top).astype(np.float32), (columns - left).astype(np.float32)
    upper = top.astype(np.int32)
    lower = np.minimum(upper + 1, height - 1)
    west = left.astype(np.int32) % width
    east = (west + 1) % width
    base = (np.arange(flows, dtype=np.int32) * (height * width))[:, None, None]
    flat = fields.reshape(count, -1)
    upper, lower = base + upper * width, base + lower * width
    values = np.take(flat, upper + west, axis=1) * ((1 - low) * (1 - right))
    values += np.take(flat, upper + east, axis=1) * ((1 - low) * right)
    values += np.take(flat, lower + west, axis=1) * (low * (1 - right))
    values += np.take(flat, lower + east, axis=1) * (low * right)
    return values


def confinement(across: Field, down: Field) -> tuple[Field, Field]:
    """Return the direction of vorticity confinement times the vorticity, across and down.

    Args:
        across: Velocity to the right, ``(flows, height, width)``.
        down: Velocity downwards, ``(flows, height, width)``.
    """
    vorticity = _sideways(down) - _downwards(across)
    size = np.abs(vorticity)
    x, y = _sideways(size), _downwards(size)
    length = np.sqrt(x * x + y * y) + np.float32(1e-6)
    return y / length * vorticity, -x / length * vorticity


def _sideways(field: Field) -> Field:
    return (np.roll(field, -1, 2) - np.roll(field, 1, 2)) * np.float32(0.5)


def _downwards(field: Field) -> Field:
    padded = np.concatenate([field[:, :1], field, field[:, -1:]], axis=1)
    return (padded[:, 2:] - padded[:, :-2]) * np.float32(0.5)


@lru_cache(maxsize=8)
def _waves(height: int, width: int) -> tuple[Any, Any, Any]:
    """Return wave numbers down and across of the mirrored box, and 1 over their squared length, float32."""
    down = fft.fftfreq(2 * height)[:, None].astype(np.float32)
    across = fft.rfftfreq(width)[None].astype(np.float32)
    # A wave of alternating signs has no direction: its derivative is zero on the grid.
    down[height] = 0
    across = np.where(across == 0.5, np.float32(0), across)
    square = down**2 + across**2
    return down, across, np.divide(1, square, out=np.zeros_like(square), where=square > 0)


def project(across: Field, down: Field) -> tuple[Field, Field]:
    """Return the divergence-free part of a velocity, with no flow through the walls.

    The mirror image in the walls has the same velocity across and the opposite one down.

    Args:
        across: Velocity to the right, ``(flows, height, width)``.
        down: Velocity downwards, ``(flows, height, width)``.
    """
    height, width = across.shape[1:]
    rows, columns, inverse = _waves(height, width)
    both = np.stack([np.concatenate([across, across[:, ::-1]], 1), np.concatenate([down, -down[:, ::-1]], 1)])
    waves = np.asarray(fft.rfft2(both))
    pressure = (columns * waves[0] + rows * waves[1]) * inverse
    waves[0] -= columns * pressure
    waves[1] -= rows * pressure
    velocity = np.asarray(fft.irfft2(waves, s=(2 * height, width)))[..., :height, :]
    return np.ascontiguousarray(velocity[0]), np.ascontiguousarray(velocity[1])


def simulate(simulations: int, frames: int, size: int, flow: Flow, seed: int) -> Field:
    """Return velocities and smoke of random plumes, float32 ``(simulations, frames, 3, size, size)``.

    Each has one to three sources near the ground with random position, width and flickering strength, in air that a
    smooth random wind stirs.

    Args:
        simulations: Number of simulations; each depends on the seed and its number alone.
        frames: Frames that are kept of each.
        size: Cells per side.
        flow: Parameters of the flows.
        seed: Seed of all draws.
    """
    rngs = [np.random.default_rng([seed, number]) for number in range(simulations)]
    fluid = Fluid.still(simulations, size, size)
    wind = np.stack([_wind(rng, size) for rng in rngs])
    fluid.across, fluid.down = wind[:, 0], wind[:, 1]
    sources = np.stack([_sources(rng, size) for rng in rngs])
    phases = np.stack([rng.uniform(0, 2 * np.pi, 3) for rng in rngs])
    rates = np.stack([rng.uniform(0.1, 0.6, 3) for rng in rngs])
    fields = np.empty((simulations, frames, 3, size, size), np.float32)
    for step in range(WARM + frames):
        flicker = 1 + 0.6 * np.sin(rates * step + phases)
        fluid.step(flow, np.einsum("ns,nshw->nhw", flicker.astype(np.float32), sources))
        if step >= WARM:
            fields[:, step - WARM] = np.stack([fluid.across, fluid.down, fluid.smoke], 1)
    return fields


def _wind(rng: np.random.Generator, size: int) -> Field:
    noise = rng.standard_normal((2, size, size))
    boundaries: Any = ("wrap", "nearest", "wrap")
    smooth = gaussian_filter(noise, (0, size / 10, size / 10), mode=boundaries)
    return (0.4 * smooth / (np.abs(smooth).max() + 1e-9)).astype(np.float32)


def _sources(rng: np.random.Generator, size: int) -> Field:
    """Return the inflow of three sources, some of them zero, ``(3, size, size)``."""
    centers = np.arange(size) + 0.5
    inflow = np.zeros((3, size, size), np.float32)
    for source in range(int(rng.integers(1, 4))):
        row, column = size * rng.uniform(0.82, 0.95), size * rng.uniform(0.2, 0.8)
        radius, strength = size * rng.uniform(0.03, 0.07), rng.uniform(0.06, 0.16)
        square = (centers[:, None] - row) ** 2 + (centers - column) ** 2
        inflow[source] = strength * np.exp(-square / (2 * radius**2))
    return inflow
