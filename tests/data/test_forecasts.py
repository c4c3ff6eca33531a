"""Forecasts as images: rounding and clipping, what lies where, flows; readers of WeatherBench and ScalarFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import compatkit as ck
from compatkit.adapters.networks import forecast
from compatkit.data.forecasts import SPAN, flow_forecasts, samples, stacked, unstacked
from compatkit.data.weatherbench import ALOFT, GROUND, LEVELS, weatherbench
from compatkit.errors import DataError
from compatkit_plugins.regularizers import forecast_error


def test_rounding_costs_what_the_page_says_and_far_values_are_clipped() -> None:
    fields = np.random.default_rng(0).uniform(-4, 4, (3, 4, 20, 10)).astype(np.float32)
    back = unstacked(stacked(fields), 4)
    assert np.abs(back - fields).max() <= SPAN / 255 / 2 + 1e-6
    assert np.sqrt(np.square(back - fields).mean()) == pytest.approx(
        SPAN / 255 / np.sqrt(12), rel=0.05
    )  # .009
    assert unstacked(stacked(np.full((1, 1, 2, 2), 7.0)), 1).max() == SPAN / 2
    assert SPAN == forecast.SPAN == forecast_error.SPAN


def test_samples_are_the_states_before_and_the_state_after() -> None:
    series = np.arange(10, dtype=np.float32)[:, None, None, None] + np.array([0, 0.5])[:, None, None]
    found = samples(series, [4, 6], (0, 1, 3), 2, [1])
    assert found[:, :, 0, 0].tolist() == [[4, 4.5, 3, 3.5, 1, 1.5, 6.5], [6, 6.5, 5, 5.5, 3, 3.5, 8.5]]


def test_flows_are_standardised_by_the_training_simulations_and_divided_by_simulation() -> None:
    data = flow_forecasts(simulations=4, each=4, size=8, lead=2, back=(0, 2))
    assert (len(data.train), len(data.test), data.train.size) == (4, 12, (9 * 8, 8))
    # frames are two apart: what is known two frames before is what was known a sample earlier
    fields = unstacked(data.test.read(range(12)), 9)
    assert np.array_equal(fields[1, 3:6], fields[0, :3])
    assert np.array_equal(fields[1, :3], fields[0, 6:])


@pytest.mark.parametrize(
    "wrong", [{"simulations": 1}, {"each": 1}, {"lead": 0}, {"back": ()}, {"back": (-1,)}]
)
def test_forecasts_that_cannot_be_made_are_refused(wrong) -> None:
    with pytest.raises(DataError):
        flow_forecasts(**wrong)
    with pytest.raises(DataError):
        stacked(np.zeros((1, 200, 32, 2)))


def test_captures_are_divided_by_folder(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for capture in ("a", "b"):
        (tmp_path / "scalar-flow" / capture).mkdir(parents=True)
        for frame in range(4):
            pixels = draw.integers(0, 255, (12, 9, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "scalar-flow" / capture / f"{frame}.png")
    data = ck.data.load("scalar-flow", root=tmp_path)
    assert (len(data.train), len(data.test)) == (4, 4)
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 0, 1, 1]
    assert data.resized((8, 8)).train.read([0]).shape == (1, 8, 8, 3)
    with pytest.raises(DataError) as caught:
        ck.data.load("scalar-flow", root=tmp_path / "scalar-flow")
    assert caught.value.subject == "scalar-flow"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("weatherbench", "scalar-flow"):
        with pytest.raises(DataError) as caught:
            ck.data.load(name, root=tmp_path)
        assert caught.value.subject == name


def test_weather_is_read_year_by_year(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    draw = np.random.default_rng(0)
    rows, hours = {"lat": 32, "lon": 64}, 24 * 8
    for variable, short in (ALOFT | GROUND).items():
        (tmp_path / variable).mkdir()
        shape = {"time": hours, **({"level": len(LEVELS)} if variable in ALOFT else {}), **rows}
        for year in (2000, 2001):
            values = draw.standard_normal(tuple(shape.values())).astype(np.float32)
            values[:] += np.arange(hours).reshape(-1, *(1,) * (len(shape) - 1)) / 50
            coordinates = {"level": list(LEVELS)} if variable in ALOFT else {}
            xarray.Dataset({short: (tuple(shape), values)}, coordinates).to_netcdf(
                tmp_path / variable / f"{variable}_{year}_5.625deg.nc"
            )
    (tmp_path / "constants").mkdir()
    fixed = {one: (tuple(rows), draw.standard_normal((32, 64))) for one in ("lsm", "orography", "lat2d")}
    xarray.Dataset(fixed).to_netcdf(tmp_path / "constants" / "constants_5.625deg.nc")
    data = weatherbench("weatherbench", [tmp_path], train=(2000, 2000), test=(2001, 2001), every=6)
    times = hours // 6
    assert data.train.size == (120 * 32, 64) and len(data.train) == times - 2 - 12
    fields = unstacked(data.train.read(range(len(data.train))), 120)
    # Z500 three days after t is what sample t + 12 knows; the lags and the constants lie where they should
    np.testing.assert_array_equal(fields[0, 117], fields[12, LEVELS.index(500)])
    np.testing.assert_array_equal(fields[0, 118], fields[12, 7 + LEVELS.index(850)])
    np.testing.assert_array_equal(fields[0, 119], fields[12, 35])
    np.testing.assert_array_equal(fields[1, 38:76], fields[0, :38])
    np.testing.assert_array_equal(fields[0, 114:117], fields[-1, 114:117])
    with pytest.raises(DataError):
        weatherbench("weatherbench", [tmp_path], every=5)
