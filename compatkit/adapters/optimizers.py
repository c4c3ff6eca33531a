"""Optimizers by timm's names with timm's parameter groups, and the layers and stages in which timm groups a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from timm.models import group_parameters
from timm.optim import (
    create_optimizer_v2,  # pyright: ignore[reportPrivateImportUsage]
    get_optimizer_class,  # pyright: ignore[reportPrivateImportUsage]
    get_optimizer_info,  # pyright: ignore[reportPrivateImportUsage]
    list_optimizers,  # pyright: ignore[reportPrivateImportUsage]
    param_groups_layer_decay,  # pyright: ignore[reportPrivateImportUsage]
    param_groups_weight_decay,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import Tensor, nn

from compatkit.adapters.builders import whole_of
from compatkit.adapters.initialization import seeded, without_draws
from compatkit.contracts.contract import Blueprint
from compatkit.errors import UsageError, suggest

LOOKAHEAD = "lookahead_"
"""Before the name of any optimizer: its weights are drawn back to slow copies every six steps."""
SETTINGS = ("lr", "weight_decay", "momentum")
"""Arguments of optimizers that are settings of a trainer."""


def check(name: str) -> None:
    """Raise unless timm has an optimizer that a run can take its steps with, and can be resumed with.

    Raises:
        UsageError: It has none of this name, it needs second derivatives, or its state is in no checkpoint.
    """
    known, base = list(map(str, list_optimizers())), name.removeprefix(LOOKAHEAD)
    if base not in known:
        raise UsageError(
            f"There is no optimizer {name!r:.60}.{suggest(base, known)} timm.optim.list_optimizers() has all of them.",
            subject=name,
        )
    info, why = get_optimizer_info(base), None
    if info.second_order:
        why = "needs second derivatives, which no step of a run computes"
    elif base.startswith("kron"):
        why = "draws from a generator of its own, which is in no checkpoint"
    elif isinstance(info.opt_class, str):
        why = f"is {info.opt_class}, of which it is not known whether a run resumes bit for bit"
    if why is not None:
        raise UsageError(f"The optimizer {name!r} {why}. Take another, such as 'adamw'.", subject=name)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise unless an optimizer has these arguments.

    Args:
        name: timm's name of the optimizer, perhaps with ``lookahead_`` in front.
        options: Arguments beyond the rate, momentum and weight decay, by name.

    Raises:
        UsageError: It has no such argument, which is named.
    """
    kind: Any = get_optimizer_class(name.removeprefix(LOOKAHEAD), bind_defaults=False)
    known = [
        parameter
        for parameter in inspect.signature(kind).parameters
        if parameter not in ("params", *SETTINGS)
    ]
    for key in options:
        if key not in known:
            hint = f" Set {key} itself, beside optimizer." if key in SETTINGS else suggest(key, known)
            raise UsageError(
                f"The optimizer {name!r} takes no option {key!r}.{hint} It takes {', '.join(known)}.",
                subject=key,
            )


def make(
    groups: Sequence[dict[str, Any]], name: str, lr: float, momentum: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Return timm's optimizer of that name; ``momentum`` is for those that have one.

    Args:
        groups: Parameter groups, as torch takes them.
        name: timm's name.
        lr: Learning rate of the first step.
        momentum: Of the optimizers that have one.
        options: Further arguments by name.
    """
    return create_optimizer_v2(list(groups), name, lr=lr, momentum=momentum, **options)


@attrs.frozen(eq=False)
class _Network:
    """What timm's groupings ask of a network: all its parameters, of which some are of parts."""

    parameters: Mapping[str, Tensor]
    group_matcher: Callable[..., Any]

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.parameters.items()


def parameter_groups(
    parts: Sequence[tuple[Blueprint | None, nn.Module]],
    weight_decay: float,
    layer_decay: float | None = None,
    *,
    spare: bool = True,
) -> list[dict[str, Any]]:
    """Return the parameters of parts as timm groups those of the uncut network.

    Args:
        parts: Extractor and head of one network, which are grouped together, or of several; or a module of no
            network, with None.
        weight_decay: Of each group that decays.
        layer_decay: Factor of the learning rate from a layer to the one before, as ``lr_scale`` of the groups; None
            keeps one rate.
        spare: Whether norms, biases, one-dimensional tensors, and what a network's ``no_weight_decay`` names, do not
            decay; they never do where ``layer_decay`` is None.

    Raises:
        UsageError: Layers are needed, and a network does not say what its layers are.
    """
    networks: list[tuple[Blueprint | None, dict[str, Tensor]]] = []
    for blueprint, module in parts:
        named: dict[str, Tensor] = dict(module.named_parameters())
        before = networks[-1][0] if networks else None
        if before and blueprint and attrs.evolve(before, side=blueprint.side) == blueprint:
            networks[-1][1].update(named)
        else:
            networks.append((blueprint, named))
    groups: list[dict[str, Any]] = []
    for blueprint, named in networks:
        whole = nn.Module() if blueprint is None else blank(blueprint).requires_grad_(False)
        shown: Any = _Network(
            {**dict(whole.named_parameters()), **named}, getattr(whole, "group_matcher", dict)
        )
        never = getattr(whole, "no_weight_decay", set)() if spare else ()
        if layer_decay is None or blueprint is None:
            groups += param_groups_weight_decay(shown, weight_decay, no_weight_decay_list=never)
            continue
        _matcher(whole, blueprint, "layer_decay")
        groups += param_groups_layer_decay(
            shown,
            weight_decay,
            no_weight_decay_list=never,
            weight_decay_exclude_1d=spare,
            layer_decay=layer_decay,
        )
    return groups


def blank(blueprint: Blueprint) -> nn.Module:
    """Return the uncut network of a part, without weights."""
    with seeded(0), without_draws():
        return whole_of(blueprint)


def grouped(blueprint: Blueprint, by: Literal["layer", "stage"], wanted: str) -> dict[str, int]:
    """Return the number of the layer or stage of each tensor of the uncut network, by timm's ``group_matcher``.

    Args:
        blueprint: Of a part.
        by: Layers, or stages, which are coarser; from 0, and the last has the class layer.
        wanted: The setting that needs them, for messages.

    Raises:
        UsageError: The network does not say what they are.
    """
    whole = blank(blueprint)
    matcher = _matcher(whole, blueprint, wanted)
    shown: Any = _Network(whole.state_dict(), matcher)
    return group_parameters(shown, matcher(coarse=by == "stage"), reverse=True)


def _matcher(whole: nn.Module, blueprint: Blueprint, wanted: str) -> Callable[..., Any]:
    matcher = getattr(whole, "group_matcher", None)
    if matcher is None:
        raise UsageError(
            f"{wanted} goes by the layers of a network, which {blueprint.model} ({blueprint.builder}) does not tell: "
            f"it has no group_matcher, as networks of timm have. Leave {wanted} out, or take a network of timm.",
            subject=blueprint.model,
        )
    return matcher
