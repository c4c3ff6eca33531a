"""Code recovery: a generator's reverse pass from its images back to its codes, comparing some of the codes only.

Paper: "Reviving Autoencoder Pretraining", Sec. 4 and B.2, RR^1 of the InfoGAN-like generator: the full reverse pass,
    with a loss on the category c_1 and the two style codes alone, that of c_1 33 % heavier.
Equations: the mean over the batch of the sum over groups k of lambda_k times |c_k - c'_k|^2, where c' is
    d'_1 of the full reverse pass (see ``reverse_pass``) that starts at the generated image.
Cost: one reverse pass of the generator.
Limits: it needs a generator that is a chain, and codes that are its input. That the category becomes the digit, as in
    the paper, did not show here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import SetUp, Step, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.hooks import Register

from ._generated import ImageObjective
from .reverse_pass._chains import Stage, Walk, chain_of, names_of, pairs, wide

compatkit_api = 1
CODES, GENERATOR = "codes", "generator"
"""Layers of ``info_gan``: what draws the codes, and what makes an image of them."""
DEFAULT = ((0, 10, 4 / 3), (10, 12, 1.0))
"""The category, and the two style codes."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``code_recovery``."""
    register("code_recovery", CodeRecovery)


def _grouped(value: Any) -> tuple[tuple[int, int, float], ...]:
    try:
        groups = tuple((index(first), index(stop), float(weight)) for first, stop, weight in value)
    except (TypeError, ValueError):
        groups = ()
    if not groups or any(
        not 0 <= first < stop or not 0 <= weight < float("inf") for first, stop, weight in groups
    ):
        raise UsageError(
            f"code_recovery: groups are rows of first code, code after the last, and weight, such as [[0, 10, 1.33], "
            f"[10, 12, 1]]; got {value!r:.100}."
        )
    return groups


@attrs.define(eq=False)
class CodeRecovery(ImageObjective):
    """Penalizes the error with which a generator's reverse pass recovers chosen codes.

    Attributes:
        groups: Rows of first code, code after the last, and weight.
        bn_reverse: Statistics of batch normalization on the way back, as for ``reverse_pass``.

    Raises:
        UsageError: A setting is invalid.
    """

    groups: Sequence[Sequence[float]] = attrs.field(default=DEFAULT, converter=_grouped)
    bn_reverse: str = "batch"
    _stages: dict[str, tuple[Stage, ...]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        Walk(self.bn_reverse)  # pyright: ignore[reportArgumentType]

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the chain of every generator.

        Raises:
            UsageError: A network has no layers ``codes`` and ``generator``, or fewer codes than a group names.
        """
        ImageObjective.compatkit_set_up(self, setup)
        for state in setup.tasks.values():
            parts: dict[str, Any] = dict(state.extractor.named_children())
            if not {CODES, GENERATOR} <= parts.keys():
                raise UsageError(
                    f"code_recovery walks back to drawn codes; task {state.name!r} has {state.task.model}, without "
                    "layers codes and generator. Take info_gan, cut at 'generator'.",
                    subject=state.name,
                )
            drawn = parts[CODES](torch.zeros(2, 1, device=setup.precision.device))
            if (last := max(stop for _, stop, _ in self.groups)) > drawn.shape[1]:
                raise UsageError(
                    f"code_recovery: groups name {last} codes; task {state.name!r} has {drawn.shape[1]}.",
                    subject=state.name,
                )
            paths = ("linear", "norm", "act", "pool")
            self._stages[state.name] = tuple(
                attrs.evolve(
                    stage, **{path: f"{GENERATOR}.{at}" for path in paths if (at := getattr(stage, path))}
                )
                for stage in chain_of(parts[GENERATOR], drawn)
            )
            setup.record_layers(state, [CODES, *names_of(self._stages[state.name])])

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the weighted errors of all groups."""
        (codes,) = step.layers[CODES]
        walk = Walk(self.bn_reverse)  # pyright: ignore[reportArgumentType]
        *_, (_, forward, back) = pairs(self._stages[step.task.name], step.layers, codes.output, walk)
        squared_errors = (wide(back) - wide(forward)).square()
        terms = [
            weight * squared_errors[:, int(first) : int(stop)].sum(1).mean()
            for first, stop, weight in self.groups
        ]
        return {"loss": torch.stack(terms).sum()}
