"""Forecasts: does a residual network forecast better if the reverse pass accompanies the first part of its training?

Paper: "Reviving Autoencoder Pretraining", Sec. 4, Fig. 9, 20 and 21, C.3: WeatherBench, three days ahead; 10 epochs
    with the local reverse pass and 15 plain ones against 25 plain ones. RMSE of Z500 5.5 % lower, "on the order of
    3 %" for both temperatures.
Here: fields of simulated flows, eight frames ahead, a smaller network; each run trains both networks from the same
    weights on the same batches, so that gains are paired. ``--set data=weatherbench`` reads the real one.
Control: ``permuted``, where each sample's future is that of another one: nothing can be forecast, and no gain may
    be left.

    compatkit study run 0.11 --seeds 5 --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import image_grid
from compatkit_plugins.regularizers.forecast_error import latitude_weights, target_fields  # pyright: ignore[reportMissingImports]

from ._arms import REFERENCE, reported, trainer
from ._smoke import few, pixels, shown

FIELDS = {"first": "velocity across or Z500", "second": "velocity down or T850", "third": "smoke or T2M"}
"""Quantities of each field, in flows and in weather."""
CPU: dict[str, Any] = {
    **{
        "data": "flow-forecasts",
        "inputs": 9,
        "outputs": 3,
        "channels": 24,
        "blocks": 4,
        "train": 180,
        "test": 180,
    },
    **{"batch_size": 12, "lr": 1e-3, "epochs": 25, "reversed": 10, "rr": 0.01, "latitudes": False},
}
PAPER: dict[str, Any] = {
    **{
        "data": "weatherbench",
        "inputs": 117,
        "outputs": 3,
        "channels": 128,
        "blocks": 19,
        "train": 0,
        "test": 0,
    },
    **{"batch_size": 32, "lr": 1e-4, "epochs": 25, "reversed": 10, "rr": 0.01, "latitudes": True},
}
SCALE = "the paper gives neither weight nor rate; here {rr} and {lr}, Adam, {batch_size} samples a step"


def permuted(split: ck.Split, share: float, seed: int) -> ck.Split:
    """Return samples whose last rows are those of other samples.

    Args:
        split: Stacked fields.
        share: Share of the rows that are the future.
        seed: Seed of the permutation.
    """
    images = split.read(range(len(split))).copy()
    first = images.shape[1] - round(share * images.shape[1])
    images[:, first:] = images[np.random.default_rng(seed).permutation(len(images)), first:]
    return attrs.evolve(split, images=images)


def errors(fit: ck.Fit, images: Tensor, latitudes: bool) -> tuple[Tensor, Tensor]:
    """Return the root mean square error of each field, over time, then space, as in WeatherBench; and the forecasts."""
    (state,) = fit.tasks.values()
    with torch.no_grad():
        predicted = torch.cat([state.extractor.eval()(part) for part in images.split(50)])
    squared_errors = (predicted - target_fields(images, tuple(predicted.shape[1:]))).double().square()
    if latitudes:
        squared_errors = squared_errors * latitude_weights(predicted.shape[2])
    return squared_errors.mean((2, 3)).sqrt().mean(0), predicted


def run(run: Run) -> Outcome:
    """Train a plain network and one with the reverse pass, and compare their forecasts of the test samples."""
    settings = run.settings
    data = run.load(settings["data"]).subset(settings["train"] or None, settings["test"] or None, seed=0)
    if run.arm == "permuted":
        share = settings["outputs"] / (settings["inputs"] + settings["outputs"])
        data = ck.DataSet(data.name, *(permuted(split, share, run.seed) for split in (data.train, data.test)))
    task = ck.Task(
        "forecast",
        data,
        "forecast_resnet",
        "last",
        size=data.train.size,
        kwargs={name: settings[name] for name in ("inputs", "outputs", "channels", "blocks")},
    )
    epoch = max(1, len(data.train) // settings["batch_size"])
    plan = trainer(run, settings["epochs"] * epoch, settings["lr"], settings["batch_size"])
    used = [ck.use("forecast_error", latitudes=settings["latitudes"])]
    stop = settings["reversed"] * epoch
    reverse = ck.use("reverse_pass", weight=settings["rr"], variant="local", stop=stop)
    images = pixels(data.test)
    plain, predicted = errors(plan.fit([task], used), images, settings["latitudes"])
    with_reverse, again = errors(plan.fit([task], [*used, reverse]), images, settings["latitudes"])
    values: dict[str, float | None] = {}
    for index, name in enumerate(FIELDS):
        error, reverse_error = float(plain[index]), float(with_reverse[index])
        values |= {
            f"plain-{name}": error,
            f"rr-{name}": reverse_error,
            f"gain-{name}": 100 * (1 - reverse_error / error),
        }
    values["gain"] = sum(100 * (1 - float(b / a)) for a, b in zip(plain, with_reverse, strict=True)) / len(
        FIELDS
    )
    # where the last known state is taken for the forecast, and where the mean is
    target = target_fields(images, tuple(predicted.shape[1:]))
    now = target_fields(images[:, :, : settings["outputs"] * predicted.shape[2]], tuple(predicted.shape[1:]))
    known = now if settings["data"] != "weatherbench" else torch.zeros_like(target)
    values["persistence"] = float((known - target).square().mean((2, 3)).sqrt().mean())
    values["mean"] = float(target.square().mean((2, 3)).sqrt().mean())
    shown_indices = [0, len(images) // 2]  # fields from -3 to 3 standard deviations, drawn from 0 to 1
    fields = {"reference": target, "plain": predicted, "rr": again}
    rows = {
        name: torch.cat([field[shown_indices, at] for at in range(3)])[:, None]
        for name, field in fields.items()
    }
    pictures = {name: few(images / 6 + 0.5, len(images)) for name, images in rows.items()}
    return Outcome(values=values, figure_data=pictures if run.seed == 0 else {})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw forecasts of two samples of the first seed, field by field."""
    drawn: dict[str, bytes] = {}
    weather = results.settings["data"] == "weatherbench"
    names = [what.split(" or ")[weather] for what in FIELDS.values()]
    titles = [f"{name} {number}" for name in names for number in (1, 2)]
    for arm in results.arms:
        pictures = next((pixels for pixels in results.figure_data(arm) if "plain" in pixels), None)
        if pictures is not None:
            rows = {name: shown(pixels) for name, pixels in pictures.items()}
            drawn[f"fields-{arm}"] = image_grid(rows, low=0, high=255, titles=titles)
    return drawn


STUDY = Study(
    title="forecasts after the reverse pass",
    question="Does a residual network forecast better after ten epochs with the local reverse pass and fifteen plain "
    "ones than after twenty-five plain ones?",
    reference=f"{REFERENCE}, Sec. 4, Fig. 9, 20 and 21, C.3",
    arms=("forecast", "permuted"),
    measures=(
        Measure(name="gain", title="lower error with the reverse pass, mean of three fields", unit="%"),
        *(
            Measure(name=f"gain-{field}", title=f"lower error of {what}", unit="%")
            for field, what in FIELDS.items()
        ),
        *(
            Measure(name=f"{kind}-{field}", title=f"RMSE of {what}, {title}", better="lower", drawn=False)
            for kind, title in (("plain", "plain"), ("rr", "with the reverse pass"))
            for field, what in FIELDS.items()
        ),
        Measure(name="persistence", title="RMSE of the last known state", better="none", drawn=False),
        Measure(name="mean", title="RMSE of the mean", better="none", drawn=False),
    ),
    sizes={"cpu": CPU, "paper": PAPER},
    scale={
        "cpu": f"{SCALE.format(**CPU)}; {CPU['inputs']} fields of simulated flows on 32x32 points and {CPU['train']} "
        f"samples (117 fields of weather on 32x64 points, 162,114 samples), {CPU['blocks']} residual blocks of "
        f"{CPU['channels']} maps (19 of 128).",
        "paper": f"{SCALE.format(**PAPER)}; a sample a day in place of every two hours, which do not fit into memory.",
    },
    paper=(
        reported("forecast", "gain-first", 5.5, "Sec. 4: latitude-weighted RMSE of Z500"),
        reported("forecast", "gain-second", 3.0, "C.3, Fig. 21: T850, 'on the order of 3 %'"),
        reported("forecast", "gain-third", 3.0, "C.3, Fig. 21: T2M, 'on the order of 3 %'"),
    ),
    run=run,
    draw=draw,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 0.11."""
    register("0.11", lambda: STUDY)
