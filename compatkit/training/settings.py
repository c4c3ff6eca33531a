"""Settings of the trainer that must fit together: checked when a trainer is made, before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from compatkit.errors import UsageError
from compatkit.training.batches.sources import Placing
from compatkit.training.optim import DECAYS, Optimisation, Schedule
from compatkit.training.views import Asked

if TYPE_CHECKING:
    from compatkit.training.trainer import Trainer


@attrs.frozen
class Resolved:
    """What words and numbers of a trainer stand for."""

    schedule: Schedule
    optimisation: Optimisation
    placing: Placing
    passes: Asked = "auto"


def resolved(trainer: Trainer) -> Resolved:
    """Return schedule, optimiser and the place of images of a trainer whose settings were checked."""
    given = trainer.schedule
    schedule = given if isinstance(given, Schedule) else Schedule(given, trainer.warmup)
    moved = Optimisation(trainer.optimiser, trainer.lr, trainer.momentum, trainer.weight_decay)
    return Resolved(schedule, moved, Placing(trainer.images, trainer.memory_share), trainer.passes)


def check_settings(trainer: Trainer) -> None:
    """Refuse what cannot be done, or would mislead.

    Raises:
        UsageError: Two settings do not go together; the message says which and what to change.
    """
    if not isinstance(trainer.schedule, Schedule) and trainer.schedule not in DECAYS:
        raise UsageError(
            f"'schedule' must be {', '.join(DECAYS)}, or a Schedule; got {trainer.schedule!r:.60}."
        )
    if isinstance(trainer.schedule, Schedule) and trainer.warmup:
        raise UsageError("Give warmup inside the Schedule, or name the schedule by a word; not both.")
    _check_pieces(trainer.batch_size, trainer.accumulate)
    if trainer.ema_warmup and trainer.ema is None:
        raise UsageError("ema_warmup=True raises the decay of moving averages; set ema, for example 0.999.")
    if (
        trainer.evaluate_every is not None
        and trainer.evaluate_on == "validation"
        and trainer.validation is None
    ):
        raise UsageError(
            f"evaluate_every={trainer.evaluate_every} has no images to evaluate on: hold out a share of the training "
            "images with validation=0.1, or set evaluate_on='test'."
        )
    if trainer.stop_early is not None:
        _check_stopping(trainer)


def _check_pieces(batch_size: int, accumulate: int) -> None:
    if batch_size % accumulate:
        raise UsageError(
            f"accumulate={accumulate} works through a step's batch in {accumulate} pieces of the same size, which "
            f"{batch_size} images do not make. Set batch_size to a multiple of {accumulate}."
        )
    if batch_size // accumulate < 2:
        raise UsageError(
            f"accumulate={accumulate} leaves {batch_size // accumulate} image a piece, of which batch normalisation "
            f"has no statistics; set accumulate to {batch_size // 2} or less, or a larger batch_size."
        )


def _check_stopping(trainer: Trainer) -> None:
    if trainer.evaluate_on == "test":
        raise UsageError(
            "stop_early looks at images held out of the training set, never at the test images: a run that is ended by "
            "its test images was chosen by them, and its figures on them are too good. Set validation=0.1 and "
            "evaluate_on='validation'."
        )
    if trainer.validation is None or trainer.evaluate_every is None:
        raise UsageError(
            "stop_early needs images to look at, and when: set validation, for example 0.1, and evaluate_every, for "
            "example 100 steps."
        )
