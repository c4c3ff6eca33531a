"""WeatherBench: ERA5 weather at 5.625 degrees, 32x64 points, as three-day forecasts (needs the extra ``weather``).

Rasp et al. (2020), "WeatherBench: A Benchmark Data Set for Data-Driven Weather Forecasting". Read from its own folders,
``geopotential/geopotential_1979_5.625deg.nc`` and so on. A sample has 117 channels to forecast from, as in Rasp and
Thuerey (2021) and "Reviving Autoencoder Pretraining", C.3: 38 fields at t, t - 6 h and t - 12 h (five variables on
seven levels, temperature at two metres, precipitation, radiation) and three constants; and Z500, T850 and T2M 72
hours on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.data.dataset import DataSet
from compatkit.data.forecasts import CLASSES, samples, stacked
from compatkit.errors import DataError, MissingDependency

LEVELS = (50, 250, 500, 600, 700, 850, 925)
ALOFT = {
    "geopotential": "z",
    "temperature": "t",
    "u_component_of_wind": "u",
    "v_component_of_wind": "v",
    "specific_humidity": "q",
}
GROUND = {"2m_temperature": "t2m", "total_precipitation": "tp", "toa_incident_solar_radiation": "tisr"}
CONSTANTS = ("lsm", "orography", "lat2d")
WANTED = (LEVELS.index(500), len(LEVELS) + LEVELS.index(850), len(ALOFT) * len(LEVELS))
"""Z500, T850 and T2M among the 38 fields."""
HOURS = 6


def weatherbench(
    name: str,
    folders: Sequence[Path],
    *,
    train: tuple[int, int] = (1979, 2015),
    test: tuple[int, int] = (2017, 2018),
    every: int = 24,
) -> DataSet:
    """Return forecasts of the years ``train`` and ``test``, both ends included.

    All fields are standardized by the training years. A sample of the paper's takes 245 KB, so that every hour does not
    fit into memory.

    Args:
        name: Of the data set.
        folders: Where to look: the first that holds ``geopotential``, itself or in a folder ``weatherbench``.
        train: First and last year for training.
        test: The same for testing.
        every: Hours between samples, a multiple of 6.

    Raises:
        DataError: No folder holds WeatherBench; a file of it is missing, damaged or not like the others; years are in
            the wrong order; or ``every`` is no multiple of 6.
        MissingDependency: xarray is not installed.
    """
    places = [place for folder in folders for place in (folder / name, folder)]
    found = next((one for one in places if (one / "geopotential").is_dir()), None)
    if found is None:
        raise DataError(
            f"Data set {name!r} is WeatherBench at 5.625 degrees, its folders geopotential, temperature and so on, "
            f"which are in none of {', '.join(map(str, places)) or 'no folder: none is named'}. Put them into a "
            "folder, and name it by root or COMPATKIT_DATA.",
            subject=name,
        )
    if every < HOURS or every % HOURS:
        raise DataError(f"every is a multiple of {HOURS} hours; got {every!r}.", subject=every)
    if any(first > last for first, last in (train, test)):
        raise DataError(f"Years are the first and the last; got {train} and {test}.", subject=name)
    fixed = _constants(found)
    scale: list[tuple[Any, Any]] = []
    parts = []
    for years in (train, test):
        read = [_year(found, year) for year in range(years[0], years[1] + 1)]
        series, times = (np.concatenate(part) for part in zip(*read, strict=True))
        if len(times) <= 2 + 72 // HOURS or (np.diff(times) != np.timedelta64(HOURS, "h")).any():
            raise DataError(
                f"WeatherBench of {years[0]} to {years[1]} lacks hours or has some twice; expected whole hourly files.",
                subject=found,
            )
        del read  # 17 GB of all years
        by_field = np.moveaxis(series, 1, 0)
        if years is train:
            scale = [(one.mean(dtype=np.float64), one.std(dtype=np.float64)) for one in by_field]
        for one, (mean, std) in zip(by_field, scale, strict=True):
            one -= mean
            one /= std
        at = range(2, len(series) - 72 // HOURS, every // HOURS)
        pieces = []
        for first in range(0, len(at), 500):
            fields = samples(series, at[first : first + 500], (0, 1, 2), 72 // HOURS, WANTED)
            known, wanted = np.split(fields, [3 * series.shape[1]], axis=1)
            constants = np.broadcast_to(fixed, (len(fields), *fixed.shape))
            pieces.append(stacked(np.concatenate([known, constants, wanted], axis=1)))
        images = np.concatenate(pieces)
        parts.append((images, np.arange(len(images)) * 2 // len(images)))
    return DataSet.of(name, parts[0], parts[1], CLASSES)


def _opened(file: Path) -> Any:
    try:
        import xarray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingDependency(
            "WeatherBench is read with xarray. Run pip install 'compatkit[weather]'."
        ) from error
    if not file.is_file():
        raise DataError(f"WeatherBench lacks {file.parent.name}/{file.name}.", subject=file)
    try:
        return xarray.open_dataset(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no NetCDF file that xarray reads: {error}", subject=file) from error


def _year(folder: Path, year: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the 38 fields of a year every six hours, ``(times, 38, latitudes, longitudes)``, and the times.

    All are brought to hours, latitudes and longitudes of the geopotential. Precipitation and radiation of 1979 begin
    seven hours late; what is missing counts as 0, as in WeatherBench's own code.
    """
    fields: list[NDArray[np.float32]] = []
    grid: Any = None
    for variable, short in (ALOFT | GROUND).items():
        file = folder / variable / f"{variable}_{year}_5.625deg.nc"
        with _opened(file) as data:
            try:
                one = data[short]
                grid = one.sortby(["lat", "lon"]) if grid is None else grid
                if short in ("tp", "tisr"):
                    one = one.reindex(time=grid["time"]).fillna(0)
                if short == "tp":  # accumulated over the six hours before
                    one = one.rolling(time=HOURS, min_periods=1).sum()
                if variable in ALOFT:
                    one = one.sel(level=list(LEVELS))
                one = one.sel(time=grid["time"][::HOURS]).transpose("time", ..., "lat", "lon")
                one = one.sel(lat=grid["lat"], lon=grid["lon"], method="nearest", tolerance=0.01)
                values = np.asarray(one.values, dtype=np.float32)
            except (KeyError, ValueError) as error:
                raise DataError(
                    f"{file} lacks {short!r} with times, latitudes and longitudes of the geopotential"
                    f"{f', at levels {LEVELS}' if variable in ALOFT else ''}: {error}",
                    subject=file,
                ) from error
        if not np.isfinite(values).all():
            raise DataError(f"{file}: {short!r} has values that are no finite numbers.", subject=file)
        fields.append(values if values.ndim == 4 else values[:, None])
    return np.concatenate(fields, axis=1), grid["time"].values[::HOURS]


def _constants(folder: Path) -> NDArray[np.float32]:
    """Return land-sea mask, orography and latitude, standardized, ``(3, latitudes, longitudes)``."""
    file = folder / "constants" / "constants_5.625deg.nc"
    with _opened(file) as data:
        if lacking := [one for one in CONSTANTS if one not in data]:
            raise DataError(f"{file} lacks {', '.join(lacking)}.", subject=file)
        ordered = data.sortby(["lat", "lon"])
        found = np.stack([np.asarray(ordered[one].values, dtype=np.float32) for one in CONSTANTS])
    return (found - found.mean((1, 2), keepdims=True)) / found.std((1, 2), keepdims=True)
