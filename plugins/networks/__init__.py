"""Small networks for small images, in plain torch and with timm's interface."""

from __future__ import annotations

from typing import Any

from compatkit import hookimpl
from compatkit.hooks import Register

from . import chains, forecast, generative, mobile, plain, residual, variational
from .classifier import Classifier

compatkit_api = 1
ROOMS = (residual, plain, mobile, chains, variational, generative, forecast)
NETWORKS = {entry.__name__: entry for room in ROOMS for entry in room.ENTRIES}
"""Builders by name: functions of keyword arguments that return a network."""


@hookimpl
def compatkit_builders(register: Register) -> None:
    """Offer ``compatkit``."""
    register("compatkit", build)


def build(model: str, **kwargs: Any) -> Classifier:
    """Build a network with random weights.

    Args:
        model: A key of ``NETWORKS``.
        kwargs: Keyword arguments of that network; None stands for its default, as in ``timm.create_model``.
    """
    network = NETWORKS[model](**{name: value for name, value in kwargs.items() if value is not None})
    network.pretrained_cfg["architecture"] = model
    return network


build.names = tuple(NETWORKS)  # type: ignore[attr-defined]
build.like_timm = True  # type: ignore[attr-defined]
