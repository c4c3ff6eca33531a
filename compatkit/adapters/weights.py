"""Load given weights into a part or a whole network, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from compatkit.adapters.inputs import class_layer
from compatkit.errors import CutError, EnvironmentFailure
from compatkit.registry.weights.tensorfile import deserialise


def load_part(part: nn.Module, state: Mapping[str, Tensor], owner: str, *, share: bool = False) -> None:
    """Load all tensors of a part and no others.

    Args:
        part: What is loaded into.
        state: Tensors by name.
        owner: What the part is called in messages.
        share: Whether the part may take the tensors themselves, where they are of its dtypes and none of its own
            stands under two names; else they are copied.

    Raises:
        CutError: Names or shapes differ.
    """
    own = part.state_dict()
    missing, extra = sorted(set(own) - set(state)), sorted(set(state) - set(own))
    shapes = [name for name in own if name in state and own[name].shape != state[name].shape]
    if missing or extra or shapes:
        raise CutError(
            f"The weights are not those of {owner}: missing {missing[:3]}, not known {extra[:3]}, of another shape "
            f"{shapes[:3]}. Take weights and blueprint from one component; the library that built it may have changed.",
            subject=owner,
        )
    part.load_state_dict(dict(state), strict=True, assign=share and _takes(own, state))


def _takes(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> bool:
    """Tell whether a part stays what it is when its tensors are exchanged one by one."""
    places = [one.untyped_storage().data_ptr() for one in own.values() if one.numel()]
    return len(set(places)) == len(places) and all(own[name].dtype == state[name].dtype for name in own)


def load_whole(whole: nn.Module, weights: str | Path | Mapping[str, Tensor], model: str) -> None:
    """Load a whole network; a class layer that is missing or of another shape stays as it is.

    Args:
        whole: What is loaded into.
        weights: A state dict, or the path of a safetensors file.
        model: Its name, for messages.

    Raises:
        CutError: Other names or shapes differ.
        FormatError: The file is no safetensors file.
        EnvironmentFailure: The file cannot be read.
    """
    state = dict(weights) if isinstance(weights, Mapping) else _read(weights)
    own, layers = whole.state_dict(), class_layer(whole)
    for name in own:
        if name.startswith(layers) and (name not in state or state[name].shape != own[name].shape):
            state[name] = own[name]
    load_part(whole, state, model)


def _read(path: str | Path) -> dict[str, Tensor]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise EnvironmentFailure(
            f"The weights at {path} cannot be read: {error}. Give 'pretrained' or the path of a safetensors file.",
            subject=path,
        ) from error
    return deserialise(data)
