"""Under which names the tensors of an export stand: those of one whole network where that is what the parts make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from compatkit.adapters.builders import whole_of
from compatkit.adapters.cutting.signals import port_signal
from compatkit.adapters.initialisation import seeded, without_draws
from compatkit.adapters.ports.runs import outputs_of
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CompatkitError, UsageError
from compatkit.evaluation.assembly import Assembly

Names = Literal["auto", "whole", "parts"]
NAMES: tuple[Names, ...] = ("auto", "whole", "parts")


def prefixes(
    modules: Sequence[tuple[Blueprint, nn.Module]],
    whole: Assembly,
    shapes: Sequence[Sequence[int]],
    names: str,
) -> tuple[list[str], Literal["whole", "parts"]]:
    """Return what stands before the names of each part, and whether these are then the names of one whole network.

    Args:
        modules: Extractor, adapters and head with their blueprints; or one part alone.
        whole: All of them as one module.
        shapes: Of the images that the whole is compared on.
        names: ``"whole"``, ``"parts"``, or ``"auto"`` for the former where it is possible.

    Raises:
        UsageError: An unknown word; or names of a whole network that the parts do not make.
    """
    if names not in NAMES:
        raise UsageError(f"names is one of {', '.join(NAMES)}, got {names!r:.40}.")
    if len(modules) == 1:
        if names == "whole":
            raise UsageError("One part alone is no whole network; its tensors keep their own names.")
        return [""], "parts"
    why = "" if names == "parts" else _why_not(modules, whole, shapes)
    if names == "whole" and why:
        raise UsageError(f"These parts are not the halves of one network, whose names they could have: {why}")
    if names == "parts" or why:
        between = [f"adapters.{place}." for place in range(len(modules) - 2)]
        return ["extractor.", *between, "head."], "parts"
    return [""] * len(modules), "whole"


def _why_not(
    modules: Sequence[tuple[Blueprint, nn.Module]], whole: Assembly, shapes: Sequence[Sequence[int]]
) -> str:
    """Return why parts are not the halves of one network, as it would say itself; empty where they are."""
    (left, extractor), *between, (right, head) = modules
    if between:
        return "adapters stand between them."
    if left.width is not None or right.width is not None:
        return "convolutions to a common width stand between them, which no builder makes."
    if (left.builder, left.model) != (right.builder, right.model):
        return f"they are of {left.model} ({left.builder}) and of {right.model} ({right.builder})."
    state = {**extractor.state_dict(), **head.state_dict()}
    if len(state) != len(extractor.state_dict()) + len(head.state_dict()):
        return f"both hold tensors of the same name; they are cut at {left.split} and at {right.split}."
    try:
        made = _loaded(right, state)
        same = _same(made, whole, shapes)
    except (CompatkitError, RuntimeError, ValueError, TypeError, LookupError) as error:
        return f"{right.model} does not take them: {error}"
    return "" if same else f"{right.model} with their tensors gives other outputs than they do."


def _loaded(blueprint: Blueprint, state: dict[str, Tensor]) -> nn.Module:
    with seeded(0), without_draws():
        made = whole_of(blueprint)
    made.load_state_dict(state, strict=True)
    return made.eval()


def _same(made: nn.Module, whole: Assembly, shapes: Sequence[Sequence[int]]) -> bool:
    """Tell whether a network gives, bit for bit, what the parts give with their stored statistics."""
    images = [port_signal(shape, place, "float32") for place, shape in enumerate(shapes)]
    with torch.no_grad():
        (expected,), came = outputs_of(_Stored(whole), images), outputs_of(made, images)
    return len(came) == 1 and torch.equal(expected, came[0])


class _Stored(nn.Module):
    """An assembly with its stored statistics, whatever its policy."""

    def __init__(self, whole: Assembly) -> None:
        super().__init__()
        self.whole = whole.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.whole.through(images)
