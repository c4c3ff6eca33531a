"""Forecasts as images: rounding and clipping, what lies where, flows; readers of WeatherBench and ScalarFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import compatkit as ck
from compatkit.errors import DataError
from compatkit_plugins.data_sets._forecasts import SPAN, samples, stack, unstack
from compatkit_plugins.data_sets.flow_forecasts import flow_forecasts
from compatkit_plugins.data_sets.weatherbench import ALOFT, GROUND, LEVELS, _year, weatherbench
from compatkit_plugins.networks import forecast
from compatkit_plugins.regularizers import forecast_error


def test_rounding_costs_what_the_page_says_and_far_values_are_clipped() -> None:
    fields = np.random.default_rng(0).uniform(-4, 4, (3, 4, 20, 10)).astype(np.float32)
    back = unstack(stack(fields), 4)
    assert np.abs(back - fields).max() <= SPAN / 255 / 2 + 1e-6
    assert np.sqrt(np.square(back - fields).mean()) == pytest.approx(
        SPAN / 255 / np.sqrt(12), rel=0.05
    )  # .009
    assert unstack(stack(np.full((1, 1, 2, 2), 7.0)), 1).max() == SPAN / 2
    assert SPAN == forecast.SPAN == forecast_error.SPAN


def test_samples_are_the_states_before_and_the_state_after() -> None:
    series = np.arange(10, dtype=np.float32)[:, None, None, None] + np.array([0, 0.5])[:, None, None]
    result = samples(series, [4, 6], (0, 1, 3), 2, [1])
    assert result[:, :, 0, 0].tolist() == [[4, 4.5, 3, 3.5, 1, 1.5, 6.5], [6, 6.5, 5, 5.5, 3, 3.5, 8.5]]


def test_flows_are_standardized_by_the_training_simulations_and_divided_by_simulation() -> None:
    data = flow_forecasts(simulations=4, each=4, size=8, lead=2, back=(0, 2))
    assert (len(data.train), len(data.test), data.train.size) == (4, 12, (9 * 8, 8))
    # frames are two apart: what is known two frames before is what was known a sample earlier
    fields = unstack(data.test.read(range(12)), 9)
    assert np.array_equal(fields[1, 3:6], fields[0, :3])
    assert np.array_equal(fields[1, :3], fields[0, 6:])


@pytest.mark.parametrize(
    "wrong",
    [{"simulations": 1}, {"each": 1.5}, {"lead": 0}, {"back": ()}, {"back": [-1]}, {"seed": "a"}],
)
def test_forecasts_that_cannot_be_made_are_refused(wrong) -> None:
    with pytest.raises(DataError):
        flow_forecasts(**wrong)
    for fields in (np.zeros((1, 200, 32, 2)), np.zeros((2, 4, 4)), np.full((1, 1, 4, 4), np.nan)):
        with pytest.raises(DataError):
            stack(fields)


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


@pytest.mark.parametrize("wrong", ["arrays", "one", "divided"])
def test_folders_that_hold_no_captures_are_named(tmp_path: Path, wrong: str) -> None:
    for part in ("train", "test") if wrong == "divided" else ("",):
        for capture in ("sim_000000",) if wrong == "one" else ("sim_000000", "sim_000001"):
            place = tmp_path / "scalar-flow" / part / capture
            place.mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(place / "0.png")
            if wrong == "arrays":
                (place / "input" / "cam").mkdir(parents=True)
                np.savez(place / "input" / "cam" / "imgsUnproc_000000.npz", data=np.zeros((5, 8, 8, 1)))
    with pytest.raises(DataError) as caught:
        ck.data.load("scalar-flow", root=tmp_path)
    assert caught.value.subject == "scalar-flow"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("weatherbench", "scalar-flow"):
        with pytest.raises(DataError) as caught:
            ck.data.load(name, root=tmp_path)
        assert caught.value.subject == name


HOURS = 24 * 7
YEARS: dict[str, Any] = {"train": (1979, 1979), "test": (2001, 2001)}


@pytest.fixture(scope="module")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out as WeatherBench's: hourly, 13 levels, precipitation and radiation of 1979 seven hours late."""
    xarray = pytest.importorskip("xarray")
    tmp_path = tmp_path_factory.mktemp("weather")
    draw = np.random.default_rng(0)
    rows = {"lat": 32, "lon": 64}
    levels = [50, 100, 150, 200, 250, 300, 400, 500, 600, 700, 850, 925, 1000]
    places = {"lat": -87.1875 + 5.625 * np.arange(32), "lon": 5.625 * np.arange(64)}
    for variable, short in (ALOFT | GROUND).items():
        (tmp_path / variable).mkdir()
        aloft = {"level": len(levels)} if variable in ALOFT else {}
        for year in (1979, 2001):
            shape = {"time": HOURS, **aloft, **rows}
            values = draw.standard_normal(tuple(shape.values())).astype(np.float32)
            values[:] += np.arange(HOURS).reshape(-1, *(1,) * (len(shape) - 1)) / 50
            times = np.datetime64(f"{year}-01-01T00", "ns") + np.arange(HOURS) * np.timedelta64(1, "h")
            made = xarray.Dataset({short: (tuple(shape), values)}, {"time": times, **places})
            if aloft:
                made = made.assign_coords(level=levels)
            late = 7 if year == 1979 and short in ("tp", "tisr") else 0
            made.isel(time=slice(late, None)).to_netcdf(
                tmp_path / variable / f"{variable}_{year}_5.625deg.nc"
            )
    (tmp_path / "constants").mkdir()
    fixed: dict[str, Any] = {
        name: (tuple(rows), draw.standard_normal((32, 64))) for name in ("lsm", "orography")
    }
    fixed["lat2d"] = (tuple(rows), np.repeat(places["lat"][:, None], 64, 1))
    xarray.Dataset(fixed, places).to_netcdf(tmp_path / "constants" / "constants_5.625deg.nc")
    return tmp_path


def test_weather_is_read_year_by_year(weather: Path) -> None:
    data = weatherbench(weather, **YEARS, every=6)
    assert data.train.size == (120 * 32, 64) and len(data.train) == HOURS // 6 - 2 - 12
    fields = unstack(data.train.read(range(len(data.train))), 120)
    # Z500 three days after t is what sample t + 12 knows; the lags and the constants lie where they should
    np.testing.assert_array_equal(fields[0, 117], fields[12, LEVELS.index(500)])
    np.testing.assert_array_equal(fields[0, 118], fields[12, 7 + LEVELS.index(850)])
    np.testing.assert_array_equal(fields[0, 119], fields[12, 35])
    np.testing.assert_array_equal(fields[1, 38:76], fields[0, :38])
    np.testing.assert_array_equal(fields[0, 114:117], fields[-1, 114:117])
    assert (np.diff(fields[0, 116, :, 0]) > 0).all()  # latitudes
    with pytest.raises(DataError):
        weatherbench(weather, every=5)
    with pytest.raises(DataError):
        weatherbench(weather, train=(2001, 1979))


def test_precipitation_and_radiation_lie_at_the_hours_of_the_other_fields(weather: Path) -> None:
    import xarray  # pyright: ignore[reportMissingImports]

    series, times = _year(weather, 1979)
    assert times[1] - times[0] == np.timedelta64(6, "h") and series.shape == (HOURS // 6, 38, 32, 64)
    with xarray.open_dataset(
        weather / "total_precipitation" / "total_precipitation_1979_5.625deg.nc"
    ) as data:
        rain = data["tp"].values  # from 7 o'clock
    assert not series[:2, 36].any()
    np.testing.assert_allclose(series[2, 36], rain[:6].sum(0), rtol=1e-5, atol=1e-5)  # 7 to 12
    np.testing.assert_allclose(series[3, 36], rain[6:12].sum(0), rtol=1e-5, atol=1e-5)
    with xarray.open_dataset(
        weather / "toa_incident_solar_radiation" / "toa_incident_solar_radiation_1979_5.625deg.nc"
    ) as data:
        np.testing.assert_array_equal(series[2, 37], data["tisr"].values[5])


@pytest.mark.parametrize("wrong", ["reversed", "level", "name", "short", "gap", "nan", "text"])
def test_a_file_unlike_the_others_is_brought_to_them_or_named(weather: Path, wrong: str) -> None:
    import xarray  # pyright: ignore[reportMissingImports]

    variable = "geopotential" if wrong == "gap" else "temperature"
    file = weather / variable / f"{variable}_2001_5.625deg.nc"
    expected, _ = _year(weather, 2001)
    with xarray.open_dataset(file) as data:
        made = data.load()
    if wrong == "reversed":
        made = made.isel(lat=slice(None, None, -1))
    elif wrong == "level":
        made = made.drop_sel(level=850)
    elif wrong == "name":
        made = made.rename(t="temperature")
    elif wrong == "short":
        made = made.isel(time=slice(None, 100))
    elif wrong == "gap":
        made = made.isel(time=np.r_[0:100, 106:HOURS])
    elif wrong == "nan":
        made["t"][3 * 6] = np.nan
    renamed = file.rename(weather / "kept")
    try:
        if wrong == "text":
            file.write_text("not a NetCDF file")
        else:
            made.to_netcdf(file)
        if wrong == "reversed":
            np.testing.assert_array_equal(_year(weather, 2001)[0], expected)
            return
        with pytest.raises(DataError) as caught:
            weatherbench(weather, **YEARS)
        assert caught.value.subject == (weather if wrong == "gap" else file)
    finally:
        renamed.replace(file)
