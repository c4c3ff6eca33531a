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

from compatkit.errors import DataError

Field = NDArray[Any]
"""float32."""


@attrs.frozen
class Flow:
    """Parameters of a flow.

    Attributes:
        buoyancy: Upward acceleration of smoke of density 1, cells per frame squared.
        confinement: Strength of vorticity confinement, eps; 0 for none.
        dissipation: Share of the smoke that vanishes in a frame.
        drag: Share of the velocity that vanishes in a frame.
        dt: Frames in a step.
    """

    buoyancy: float = 0.06
    confinement: float = 0.15
    dissipation: float = 0.01
    drag: float = 0.005
    dt: float = 1.0


@attrs.define(eq=False)
class Fluid:
    """Several flows side by side: float32 fields ``(flows, height, width)``, row 0 at the top.

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
            DataError: A count below 1, or fewer than 4 cells a side.
        """
        if flows < 1 or min(height, width) < 4:
            raise DataError(f"A fluid has 1 flow and 4 cells a side at least; got {flows}, {height}x{width}.")
        return cls(*(np.zeros((flows, height, width), np.float32) for _ in range(3)))

    def step(self, flow: Flow, inflow: Field | None = None) -> None:
        """Advance all flows by ``flow.dt``.

        Args:
            flow: Parameters.
            inflow: Smoke added in a frame, ``(flows, height, width)``; None for none.
        """
        rows, columns = _back(self.across, self.down, flow.dt)
        across, down, smoke = sampled(np.stack([self.across, self.down, self.smoke]), rows, columns)
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
        self.across, self.down = projected(across, down)
        self.smoke = smoke


def _back(across: Field, down: Field, dt: float) -> tuple[Field, Field]:
    """Return rows and columns from which the content of each cell comes."""
    rows = np.arange(across.shape[1], dtype=np.float32)[:, None] - dt * down
    columns = np.arange(across.shape[2], dtype=np.float32) - dt * across
    return rows, columns


def sampled(fields: Field, rows: Field, columns: Field) -> Field:
    """Return fields at other places by bilinear interpolation, periodic sideways, clamped at the walls.

    Args:
        fields: ``(n, flows, height, width)``.
        rows: Places in cells, ``(flows, height, width)``.
        columns: The same.

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
    found = np.take(flat, upper + west, axis=1) * ((1 - low) * (1 - right))
    found += np.take(flat, upper + east, axis=1) * ((1 - low) * right)
    found += np.take(flat, lower + west, axis=1) * (low * (1 - right))
    found += np.take(flat, lower + east, axis=1) * (low * right)
    return found


def confinement(across: Field, down: Field) -> tuple[Field, Field]:
    """Return the direction of vorticity confinement times the vorticity, across and down.

    Args:
        across: ``(flows, height, width)``.
        down: The same.
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


def projected(across: Field, down: Field) -> tuple[Field, Field]:
    """Return the part of a velocity that is free of divergence, with nothing through the walls.

    The mirror image in the walls has the same velocity across and the opposite one down.

    Args:
        across: ``(flows, height, width)``.
        down: The same.
    """
    height, width = across.shape[1:]
    rows, columns, inverse = _waves(height, width)
    both = np.stack([np.concatenate([across, across[:, ::-1]], 1), np.concatenate([down, -down[:, ::-1]], 1)])
    waves = np.asarray(fft.rfft2(both))
    pressure = (columns * waves[0] + rows * waves[1]) * inverse
    waves[0] -= columns * pressure
    waves[1] -= rows * pressure
    found = np.asarray(fft.irfft2(waves, s=(2 * height, width)))[..., :height, :]
    return np.ascontiguousarray(found[0]), np.ascontiguousarray(found[1])
