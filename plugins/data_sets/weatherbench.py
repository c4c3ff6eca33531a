"""WeatherBench: ERA5 weather at 5.625 degrees, 32x64 points, as three-day forecasts (needs the extra ``weather``).

Rasp et al. (2020), "WeatherBench: A Benchmark Data Set for Data-Driven Weather Forecasting". Read from its own folders,
``geopotential/geopotential_1979_5.625deg.nc`` and so on. A sample has 117 channels to forecast from, as in Rasp and
Thuerey (2021) and "Reviving Autoencoder Pretraining", C.3: 38 fields at t, t - 6 h and t - 12 h (five variables on
seven levels, temperature at two metres, precipitation, radiation) and three constants; and Z500, T850 and T2M 72
hours on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit import DataSet, hookimpl
from compatkit.errors import DataError, MissingDependency
from compatkit.hooks import Register

from ._files import Root, folder_of, missing
from ._forecasts import CLASSES, samples, stack

compatkit_api = 1
NAME = "weatherbench"
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
TARGETS = (LEVELS.index(500), len(LEVELS) + LEVELS.index(850), len(ALOFT) * len(LEVELS))
"""Z500, T850 and T2M among the 38 fields."""
HOURS = 6


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``weatherbench``."""
    register(NAME, lambda root=None, download=False: weatherbench(root))


def weatherbench(
    root: Root = None,
    *,
    train: tuple[int, int] = (1979, 2015),
    test: tuple[int, int] = (2017, 2018),
    every: int = 24,
) -> DataSet:
    """Return forecasts of the years ``train`` and ``test``, both ends included.

    All fields are standardized by the training years. One of the paper's samples takes 245 KB, so samples of every hour
    do not fit into memory.

    Args:
        root: Folder that holds the folder ``geopotential`` and so on, itself or in a folder ``weatherbench``.
        train: First and last year for training.
        test: First and last year for testing.
        every: Hours between samples, a multiple of 6.

    Raises:
        DataError: The folder does not hold WeatherBench; a file is missing, damaged or unlike the others; years are in
            the wrong order; or ``every`` is no multiple of 6.
        MissingDependency: xarray is not installed.
    """
    around = folder_of(root)
    folders = (around / NAME, around) if around else ()
    folder = next((path for path in folders if (path / "geopotential").is_dir()), None)
    if folder is None:
        raise missing(
            NAME, "WeatherBench's folders at 5.625 degrees, geopotential, temperature and so on", root
        )
    if every < HOURS or every % HOURS:
        raise DataError(f"every is a multiple of {HOURS} hours; got {every!r}.", subject=every)
    if any(first > last for first, last in (train, test)):
        raise DataError(f"Years are the first and the last; got {train} and {test}.", subject=NAME)
    fixed = _constants(folder)
    scale: list[tuple[Any, Any]] = []
    parts = []
    for years in (train, test):
        read = [_year(folder, year) for year in range(years[0], years[1] + 1)]
        series, times = (np.concatenate(part) for part in zip(*read, strict=True))
        if len(times) <= 2 + 72 // HOURS or (np.diff(times) != np.timedelta64(HOURS, "h")).any():
            raise DataError(
                f"WeatherBench of {years[0]} to {years[1]} lacks hours or repeats some; expected whole hourly files.",
                subject=folder,
            )
        del read  # 17 GB of all years
        by_field = np.moveaxis(series, 1, 0)
        if years is train:
            scale = [(field.mean(dtype=np.float64), field.std(dtype=np.float64)) for field in by_field]
        for field, (mean, std) in zip(by_field, scale, strict=True):
            field -= mean
            field /= std
        at = range(2, len(series) - 72 // HOURS, every // HOURS)
        pieces = []
        for first in range(0, len(at), 500):
            fields = samples(series, at[first : first + 500], (0, 1, 2), 72 // HOURS, TARGETS)
            known, targets = np.split(fields, [3 * series.shape[1]], axis=1)
            constants = np.broadcast_to(fixed, (len(fields), *fixed.shape))
            pieces.append(stack(np.concatenate([known, constants, targets], axis=1)))
        images = np.concatenate(pieces)
        parts.append((images, np.arange(len(images)) * 2 // len(images)))
    return DataSet.of(NAME, parts[0], parts[1], CLASSES)


def _open(file: Path) -> Any:
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

    All are aligned with the hours, latitudes and longitudes of the geopotential. Precipitation and radiation of 1979
    begin seven hours late; missing values count as 0, as in WeatherBench's own code.
    """
    fields: list[NDArray[np.float32]] = []
    grid: Any = None
    for variable, short in (ALOFT | GROUND).items():
        file = folder / variable / f"{variable}_{year}_5.625deg.nc"
        with _open(file) as data:
            try:
                field = data[short]
                grid = field.sortby(["lat", "lon"]) if grid is None else grid
                if short in ("tp", "tisr"):
                    field = field.reindex(time=grid["time"]).fillna(0)
                if short == "tp":  # accumulated over the six hours before
                    field = field.rolling(time=HOURS, min_periods=1).sum()
                if variable in ALOFT:
                    field = field.sel(level=list(LEVELS))
                field = field.sel(time=grid["time"][::HOURS]).transpose("time", ..., "lat", "lon")
                field = field.sel(lat=grid["lat"], lon=grid["lon"], method="nearest", tolerance=0.01)
                values = np.asarray(field.values, dtype=np.float32)
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
    with _open(file) as data:
        if lacking := [constant for constant in CONSTANTS if constant not in data]:
            raise DataError(f"{file} lacks {', '.join(lacking)}.", subject=file)
        ordered = data.sortby(["lat", "lon"])
        fields = np.stack([np.asarray(ordered[constant].values, dtype=np.float32) for constant in CONSTANTS])
    return (fields - fields.mean((1, 2), keepdims=True)) / fields.std((1, 2), keepdims=True)
