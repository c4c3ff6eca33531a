"""The unchanged head: with its stored statistics, or with those of the features that come."""

from __future__ import annotations

from compatkit import hookimpl
from compatkit.components.bridges.rungs import RungFit, RungInputs
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_rungs(register: Register) -> None:
    """Offer ``direct`` and ``statistics``."""
    register("direct", lambda inputs: RungFit(direct=True))
    register("statistics", statistics)


def statistics(inputs: RungInputs) -> RungFit:
    """Return the head as it is; statistics are estimated behind every fit."""
    return RungFit()
