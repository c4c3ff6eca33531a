"""State that plugins keep in checkpoints: tensors and JSON values, nothing that would need pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from compatkit.errors import type_of
from compatkit.plugins.owners import Owner


def check_state(state: object, owner: Owner) -> dict[str, Any]:
    """Return a plugin's state, if its values are tensors or JSON values.

    Raises:
        PluginError: Something else is in it; the message says where.
    """
    if not isinstance(state, Mapping):
        raise owner.error(
            f"compatkit_state returned {type_of(state)}; return a mapping from names to tensors "
            "and JSON values.",
            "compatkit_state",
        )
    import torch

    rest = {
        key: value
        for key, value in cast("Mapping[object, object]", state).items()
        if not isinstance(value, torch.Tensor)
    }
    _check(rest, "", owner)
    if not all(isinstance(key, str) for key in state):
        raise owner.error("compatkit_state names tensors by other than texts.", "compatkit_state")
    return dict(cast("Mapping[str, Any]", state))


def _check(value: object, path: str, owner: Owner) -> None:
    if isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise owner.error(
                    f"compatkit_state has the key {key!r} at {path or 'its top'}; keys are texts.",
                    "compatkit_state",
                )
            _check(one, f"{path}.{key}".lstrip("."), owner)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(cast("list[object]", value)):
            _check(one, f"{path}[{index}]", owner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise owner.error(
            f"compatkit_state holds {value} at {path}; JSON has no such number. Keep it in a tensor.",
            "compatkit_state",
        )
    elif not (value is None or isinstance(value, (bool, int, float, str))):
        raise owner.error(
            f"compatkit_state holds a value of type {type(value).__name__} at {path}; "
            "a checkpoint takes tensors at the top and JSON values (texts, numbers, True, False, None, "
            "lists, mappings).",
            "compatkit_state",
        )
