"""timm's optimizers by name, its parameter groups, and its grouping of a network into layers and stages."""

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
"""Prefix of any optimizer: every six steps its weights move towards slow copies."""
SETTINGS = ("lr", "weight_decay", "momentum")
"""Arguments of optimizers that are settings of a trainer."""


def check(name: str) -> None:
    """Check that timm has an optimizer, and that training with it can be resumed exactly.

    Raises:
        UsageError: The name is unknown, the optimizer needs second derivatives, or checkpoints lack its state.
    """
    known, base = list(map(str, list_optimizers())), name.removeprefix(LOOKAHEAD)
    if base not in known:
        raise UsageError(
            f"There is no optimizer {name!r:.60}.{suggest(base, known)} timm.optim.list_optimizers() has all of them.",
            subject=name,
        )
    info, why = get_optimizer_info(base), None
    if info.second_order:
        why = "needs second derivatives, which are not computed"
    elif base.startswith("kron"):
        why = "has a random generator of its own, which is not in checkpoints"
    elif isinstance(info.opt_class, str):
        why = f"is {info.opt_class}, which is not known to resume exactly"
    if why is not None:
        raise UsageError(f"The optimizer {name!r} {why}. Take another, such as 'adamw'.", subject=name)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check the names of an optimizer's options.

    Args:
        name: timm's name of the optimizer, optionally with the prefix ``lookahead_``.
        options: Options other than learning rate, momentum and weight decay.

    Raises:
        UsageError: The optimizer has no such option.
    """
    kind: Any = get_optimizer_class(name.removeprefix(LOOKAHEAD), bind_defaults=False)
    parameters = inspect.signature(kind).parameters
    known = [parameter for parameter in parameters if parameter not in ("params", *SETTINGS)]
    for key in options:
        if key not in known:
            hint = f" Set the trainer's {key} instead." if key in SETTINGS else suggest(key, known)
            raise UsageError(
                f"The optimizer {name!r} takes no option {key!r}.{hint} It takes {', '.join(known)}.",
                subject=key,
            )


def make(
    groups: Sequence[dict[str, Any]], name: str, lr: float, momentum: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Return an optimizer of timm.

    Args:
        groups: Parameter groups of torch.
        name: timm's name of the optimizer.
        lr: Learning rate of the first step.
        momentum: Momentum, for optimizers that have one.
        options: Further options by name.
    """
    return create_optimizer_v2(list(groups), name, lr=lr, momentum=momentum, **options)


@attrs.frozen(eq=False)
class _Network:
    """Stand-in for a network that timm groups: its parameters, those of parts in place of its own."""

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
    """Return the parameters of parts, grouped as timm groups the uncut network.

    Args:
        parts: Extractors and heads with their blueprints; those of one network are grouped together. The blueprint of
            another module is None.
        weight_decay: Weight decay of each group that decays.
        layer_decay: Factor of the learning rate from a layer to the one before, as ``lr_scale`` of the groups; None
            uses one rate.
        spare: Whether norms, biases, one-dimensional tensors, and those in a network's ``no_weight_decay``, do not
            decay; they never do if ``layer_decay`` is None.

    Raises:
        UsageError: ``layer_decay`` is set, and a network does not define its layers.
    """
    networks: list[tuple[Blueprint | None, dict[str, Tensor]]] = []
    for blueprint, module in parts:
        parameters: dict[str, Tensor] = dict(module.named_parameters())
        before = networks[-1][0] if networks else None
        if before and blueprint and attrs.evolve(before, side=blueprint.side) == blueprint:
            networks[-1][1].update(parameters)
        else:
            networks.append((blueprint, parameters))
    groups: list[dict[str, Any]] = []
    for blueprint, parameters in networks:
        whole = nn.Module() if blueprint is None else blank(blueprint).requires_grad_(False)
        shown: Any = _Network(
            {**dict(whole.named_parameters()), **parameters}, getattr(whole, "group_matcher", dict)
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
    """Return the index of the layer or stage of each tensor of the uncut network, by timm's ``group_matcher``.

    Args:
        blueprint: Blueprint of a part.
        by: ``"layer"`` or the coarser ``"stage"``; indices start at 0, the last contains the class layer.
        wanted: Setting that needs them, for messages.

    Raises:
        UsageError: The network does not define them.
    """
    whole = blank(blueprint)
    matcher = _matcher(whole, blueprint, wanted)
    shown: Any = _Network(whole.state_dict(), matcher)
    return group_parameters(shown, matcher(coarse=by == "stage"), reverse=True)


def _matcher(whole: nn.Module, blueprint: Blueprint, wanted: str) -> Callable[..., Any]:
    matcher = getattr(whole, "group_matcher", None)
    if matcher is None:
        raise UsageError(
            f"{wanted} needs a network with timm's group_matcher, which {blueprint.model} ({blueprint.builder}) lacks. "
            f"Leave {wanted} out, or use a network of timm.",
            subject=blueprint.model,
        )
    return matcher
