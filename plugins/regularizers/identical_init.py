"""Identical initial weights (IIW): all networks of a run start from the same point.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 3.3: Phi_a^0 = Phi_b^0 and Theta_a^0 = Theta_b^0, random or pretrained.
Cost: none during training; two more builds of the network at the start.
Limits: it needs networks of one architecture. Most of its effect comes from class layers that start equal, and is
    lost where the classes stand in another order. Weights drift apart in long training.
"""

from __future__ import annotations

from typing import Literal

import attrs

from compatkit import SetUp, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import SEED, OneOf
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``identical_init``."""
    register("identical_init", IdenticalInit)


@attrs.frozen
class IdenticalInit:
    """Draws every network's initial weights from one stream.

    Heads start equal too; only class layers of different size differ. Where the tasks start from given
    weights, those are the identical initial weights, and only the class layers are drawn.

    Class layers that start equal help parts to fit where row k means the same class in both networks, and only there:
    two networks whose classes stand in another order fit far less. What a figure owes to the order of the classes is
    told apart by ``class_layer="own"``.

    Attributes:
        seed: Names the initial weights, so that a later run can start from the same ones; None takes the
            run's seed.
        class_layer: ``"identical"``, the paper's: class layers of equal size start equal, row by row; ``"own"``: each
            network draws its own, by the run's seed and the task's name.
    """

    seed: int | None = attrs.field(default=None, validator=attrs.validators.optional(SEED))
    class_layer: Literal["identical", "own"] = attrs.field(
        default="identical", validator=OneOf(("identical", "own"))
    )

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Draw all networks anew and check that they are identical.

        Raises:
            UsageError: The networks differ in shape, so they cannot start from the same weights.
        """
        states = list(setup.tasks.values())
        for state in states:
            setup.initialize(
                state, "identical_init", seed=self.seed, class_layer=self.class_layer == "identical"
            )
        for head in setup.frozen.values():
            if head.initials and states[0].initial not in head.initials:
                raise UsageError(
                    f"identical_init: the frozen head {head.name!r} was trained with networks that started from other "
                    "weights. Use the seed of that run, compatkit.use('identical_init', seed=...), the same model "
                    "and the same `weights`."
                )
        for other in states[1:]:
            if other.initial != states[0].initial:
                raise UsageError(
                    "identical_init needs networks of one architecture that start from the same weights: task "
                    f"{states[0].name!r} is {states[0].task.model} cut after {states[0].task.cut} with "
                    f"{dict(states[0].extractor_blueprint.kwargs)}, task {other.name!r} is {other.task.model} cut "
                    f"after {other.task.cut} with {dict(other.extractor_blueprint.kwargs)}. Use one model and "
                    "one kind of image for both (in_chans), the same `weights`, or leave identical_init out."
                )
