"""The table of builders: who makes a whole network from a model name and JSON keyword arguments."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
from torch import nn

from compatkit.adapters import timm as timm_adapter
from compatkit.contract import Blueprint
from compatkit.errors import UnknownName, UsageError


@attrs.frozen
class Builder:
    """A source of backbones.

    Attributes:
        create: ``create(model, pretrained=False, **kwargs)`` gives the whole network; ``pretrained`` is only passed
            where it was asked for.
        library: What a blueprint records: distribution and version.
        names: Known model names, for messages; None where they cannot be listed.
    """

    create: Callable[..., nn.Module]
    library: Callable[[], str]
    names: Callable[[], Iterable[str]] | None = None


BUILDERS: dict[str, Builder] = {
    "timm": Builder(timm_adapter.create, timm_adapter.library, timm_adapter.names),
}
"""By the name that a blueprint records; plugins may add others."""


def create(builder: str, model: str, kwargs: Mapping[str, Any], *, pretrained: bool = False) -> nn.Module:
    """Build a whole network.

    Raises:
        UnknownName: No such builder or model.
        UsageError: The arguments are not what the model takes, or no JSON values.
    """
    if builder not in BUILDERS:
        raise UnknownName(
            f"No builder is called {builder!r}; known are {', '.join(BUILDERS)}. Name the plugin that brings it.",
            subject=builder,
        )
    source = BUILDERS[builder]
    known = None if source.names is None else list(source.names())
    if known is not None and model.partition(".")[0] not in known:
        near = difflib.get_close_matches(model, known, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "look it up with timm.list_models()."
        raise UnknownName(f"No backbone is called {model!r}; {hint}", subject=model)
    given = dict(json_kwargs(model, kwargs))
    if pretrained:
        given["pretrained"] = True
    whole = source.create(model, **given)
    if not isinstance(whole, nn.Module):
        raise UsageError(f"Builder {builder!r} gave a {type(whole).__name__} for {model!r}, not a module.")
    return whole


def json_kwargs(model: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as a blueprint keeps them: JSON values only, tuples as lists.

    Raises:
        UsageError: A value is no JSON, or weights are asked for here.
    """
    barred = sorted({"pretrained", "checkpoint_path", "cache_dir"} & set(kwargs))
    if barred:
        raise UsageError(
            f"{model}: {', '.join(barred)} is no part of a blueprint, which says how a network is built and not which "
            "weights it gets; ask for weights='pretrained' instead.",
            subject=barred,
        )
    try:
        return json.loads(json.dumps(dict(kwargs), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{model}: keyword arguments must be JSON values, to be stored: {error}.") from None


def whole_of(blueprint: Blueprint, *, pretrained: bool = False) -> nn.Module:
    """Build the whole network of a blueprint."""
    return create(blueprint.builder, blueprint.model, blueprint.kwargs, pretrained=pretrained)
