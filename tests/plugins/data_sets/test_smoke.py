"""Stable fluids against slow float64 references and flows that are known; smoke as data sets."""

from __future__ import annotations

import math

import numpy as np
import pytest

import compatkit as ck
from compatkit.errors import DataError
from compatkit_plugins.data_sets._fluid import Flow, Fluid, confinement, project, sample
from compatkit_plugins.data_sets.smoke import captured_smoke, smoke

STILL = Flow(buoyancy=0, confinement=0, dissipation=0, drag=0)
DRAW = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def test_places_between_cells_are_interpolated_as_by_loops() -> None:
    field, rows, columns = noise(1, 1, 5, 6), 7 * noise(1, 5, 6), 9 * noise(1, 5, 6)
    result = sample(field, rows, columns)[0, 0]
    for i in range(5):
        for j in range(6):
            row, column = min(max(float(rows[0, i, j]), 0), 4), float(columns[0, i, j])
            top, left = math.floor(row), math.floor(column)
            wanted = sum(
                float(field[0, 0, min(top + a, 4), (left + b) % 6])
                * (row - top if a else 1 - row + top)
                * (column - left if b else 1 - column + left)
                for a in (0, 1)
                for b in (0, 1)
            )
            assert result[i, j] == pytest.approx(wanted, abs=1e-5)


def test_a_wind_moves_smoke_by_whole_cells_and_around_the_side() -> None:
    fluid = Fluid.still(2, 8, 8)
    fluid.smoke, fluid.across[:] = noise(2, 8, 8), 3
    before = fluid.smoke
    fluid.step(STILL)
    np.testing.assert_allclose(fluid.smoke, np.roll(before, 3, 2), atol=1e-5)
    np.testing.assert_allclose(fluid.across, 3, atol=1e-5)


def mirrored(field: np.ndarray, sign: int) -> np.ndarray:
    return np.concatenate([field, sign * field[:, ::-1]], 1).astype(np.float64)


def divergence(across: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Spectral divergence of the mirrored box, with the whole transform in float64."""
    u, v = mirrored(across, 1), mirrored(down, -1)
    height, width = u.shape[1:]
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    rows, columns = np.where(rows == -0.5, 0, rows), np.where(columns == -0.5, 0, columns)
    return np.fft.ifft2(1j * (columns * np.fft.fft2(u) + rows * np.fft.fft2(v))).real


def test_what_is_projected_has_no_divergence_and_is_projected_onto_itself() -> None:
    across, down = noise(2, 12, 10), noise(2, 12, 10)
    assert np.abs(divergence(across, down)).max() > 0.1
    once = project(across, down)
    assert np.abs(divergence(*once)).max() < 1e-6
    np.testing.assert_allclose(project(*once), once, atol=1e-5)


def test_a_whirl_stays_and_a_gradient_vanishes() -> None:
    rows, columns = (np.arange(16) + 0.5)[:, None] * np.pi / 16, np.arange(16)[None] * 2 * np.pi / 16
    # stream function sin(y) sin(x) and potential cos(y) cos(x), with y from wall to wall and x around
    whirl = np.cos(rows) / 2 * np.sin(columns), -np.sin(rows) * np.cos(columns)
    across, down = (entry[None].astype(np.float32) for entry in whirl)
    np.testing.assert_allclose(project(across, down), (across, down), atol=1e-6)
    slope = np.cos(rows) * -np.sin(columns) * 2, -np.sin(rows) * np.cos(columns)
    result = project(*(entry[None].astype(np.float32) for entry in slope))
    np.testing.assert_allclose(result, 0, atol=1e-6)


def test_smoke_everywhere_is_carried_by_pressure_and_a_cloud_rises() -> None:
    fluid = Fluid.still(1, 16, 16)
    fluid.smoke[:] = 1
    fluid.step(Flow(confinement=0))
    assert np.abs([fluid.across, fluid.down]).max() < 1e-6
    fluid.smoke = np.zeros((1, 16, 16), np.float32)
    fluid.smoke[0, 10:12, 7:9] = 1
    fluid.step(Flow(confinement=0))
    assert fluid.down[0, 10:12, 7:9].max() < 0 < fluid.down[0, 10:12, :4].min()


def test_confinement_by_loops() -> None:
    across, down = noise(1, 6, 6), noise(1, 6, 6)

    def slope(field: np.ndarray, i: int, j: int) -> tuple[float, float]:
        low, high = max(i - 1, 0), min(i + 1, 5)
        return (field[i, (j + 1) % 6] - field[i, j - 1]) / 2, (field[high, j] - field[low, j]) / 2

    turning = np.array(
        [[slope(down[0], i, j)[0] - slope(across[0], i, j)[1] for j in range(6)] for i in range(6)]
    )
    result = confinement(across, down)
    for i in range(6):
        for j in range(6):
            x, y = slope(np.abs(turning), i, j)
            wanted = np.array([y, -x]) / (math.hypot(x, y) + 1e-6) * turning[i, j]
            np.testing.assert_allclose([result[0][0, i, j], result[1][0, i, j]], wanted, atol=1e-4)


@pytest.mark.parametrize(("make", "channels"), [(smoke, "L"), (captured_smoke, "RGB")])
def test_frames_are_divided_by_simulation_and_repeat_with_the_seed(make, channels) -> None:
    few = make(simulations=4, frames=6, size=16)
    assert (len(few.train), len(few.test), few.train.size, few.train.channels) == (6, 18, (16, 16), channels)
    assert few.train.counts == (3, 3)
    # a simulation depends on its number, not on how many there are
    fewer = make(simulations=2, frames=6, size=16)
    assert np.array_equal(fewer.train.images, few.train.images)
    assert np.array_equal(fewer.test.images, few.test.images[:6])
    assert not np.array_equal(make(simulations=2, frames=6, size=16, seed=1).train.images, few.train.images)


@pytest.mark.parametrize(
    "wrong", [{"simulations": 1}, {"frames": 1}, {"size": 8}, {"seed": -1}, {"seed": "a"}]
)
def test_too_little_smoke_is_refused(wrong) -> None:
    with pytest.raises(DataError):
        smoke(**wrong)
    with pytest.raises(DataError):
        Fluid.still(0, 4, 4)


@pytest.mark.slow
def test_the_named_sets_have_the_papers_counts() -> None:
    assert [len(item) for item in (ck.data.load("smoke").train, ck.data.load("smoke").test)] == [240, 2160]
    captured = ck.data.load("captured-smoke")
    assert len(captured.train) + len(captured.test) == 2500
