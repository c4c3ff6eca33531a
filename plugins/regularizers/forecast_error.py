"""Forecast error: the mean square difference between forecast fields and those at the end of each image.

Paper: "Reviving Autoencoder Pretraining", C.3; the latitude weights are those of Rasp et al. (2020), "WeatherBench".
Equations: mean over batch, fields and points of w(i) (g(x) - y)^2, where y are the last fields of the image, in
    standard deviations, and w(i) = cos(latitude of row i) over its mean, or 1.
Cost: none beside the network.
Limits: all fields count alike, whatever their unit: give them in standard deviations. Convolutions pad longitudes
    with zeros. Weather itself was not run, only simulated flows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from compatkit import SetUp, Step, Task, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

from ._generated import ImageObjective

compatkit_api = 1
SPAN = 8.0
"""Standard deviations from black to white, as in the images that ``compatkit.data`` stacks."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``forecast_error``."""
    register("forecast_error", ForecastError)


def latitude_weights(rows: int) -> Tensor:
    """Return the weight of each row of a grid from pole to pole, float32 ``(rows, 1)``, 1 in the mean."""
    latitudes = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows * math.pi - math.pi / 2
    weights = latitudes.cos()
    return (weights / weights.mean()).float()[:, None]


def target_fields(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the fields that should be forecast, in standard deviations.

    Args:
        images: From 0 to 1, ``(batch, 1, rows, width)``.
        shape: Shape of the forecast: fields, height, width.

    Returns:
        ``(batch, *shape)``.
    """
    return (images[:, 0, -shape[0] * shape[1] :].reshape(len(images), *shape) - 0.5) * SPAN


@attrs.define(eq=False)
class ForecastError(ImageObjective):
    """Trains networks to forecast the last fields of an image from the others.

    Attributes:
        latitudes: Whether rows are weighted as latitudes from pole to pole.
    """

    latitudes: bool = False

    @hookimpl
    def compatkit_task(self, task: Task, seed: int) -> Task:
        """Return the task as ``ImageObjective`` does.

        Raises:
            UsageError: Its images are augmented, which mixes fields that lie one below the other.
        """
        if task.augment:
            raise UsageError(
                f"Task {task.name!r} forecasts fields that are stacked in one image, which crops and flips spoil; got "
                f"augment={task.augment!r}. Leave it out.",
                subject=task.name,
            )
        return ImageObjective.compatkit_task(self, task, seed)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Check that features are fields of the images.

        Raises:
            UsageError: They are not.
        """
        for state in setup.tasks.values():
            shape, (rows, width) = tuple(state.feature_shape[1:]), state.data.size
            fits = (
                len(shape) == 3 and not rows % shape[1] and shape[0] * shape[1] < rows and shape[2] == width
            )
            if not fits or len(state.data.mean) != 1:
                raise UsageError(
                    f"Task {state.name!r} forecasts fields that are stacked in gray images of {rows}x{width}; "
                    f"{state.task.model} cut at {state.task.cut!r} gives {shape}. Cut forecast_resnet at 'last'.",
                    subject=state.name,
                )

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean square error."""
        forecast = step.features.float()
        squared_errors = (
            forecast - target_fields(step.batch.images.float(), tuple(forecast.shape[1:]))
        ).square()
        if self.latitudes:
            squared_errors = squared_errors * latitude_weights(forecast.shape[2]).to(squared_errors.device)
        return {"squares": squared_errors.mean()}
