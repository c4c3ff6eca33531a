"""Load given weights into a part or a whole network, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from compatkit.adapters.inputs import class_layer
from compatkit.errors import CutError, EnvironmentFailure
from compatkit.registry.weights.header import read_whole
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values, compare
from compatkit.registry.weights.tensorfile import deserialize

_FROM_ONE = "Take weights and blueprint from one component; the library that built it may have changed."
_FROM_WHOLE = "Give weights of this architecture, for images of the same size and channels (size, kwargs)."


def load_part(
    part: nn.Module, state: Mapping[str, Tensor], owner: str, *, share: bool = False, advice: str = _FROM_ONE
) -> None:
    """Load all tensors of a part and no others.

    Args:
        part: What is loaded into.
        state: Tensors by name.
        owner: What the part is called in messages.
        share: Whether the part may take the tensors themselves, where they are of its dtypes and none of its own
            stands under two names; else they are copied.
        advice: Ends the message.

    Raises:
        CutError: Names, shapes or kinds of numbers differ.
    """
    own = part.state_dict()
    if mismatch := compare(state, own):
        raise CutError(
            f"The weights are not those of {owner}: {'; '.join(mismatch.sentences())}. {advice}",
            subject=owner,
        )
    part.load_state_dict(dict(state), strict=True, assign=share and _takes(own, state))


def _takes(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> bool:
    """Return whether the tensors of a part can be replaced one by one: none are shared, and types stay."""
    places = [tensor.untyped_storage().data_ptr() for tensor in own.values() if tensor.numel()]
    return len(set(places)) == len(places) and all(own[name].dtype == state[name].dtype for name in own)


def load_whole(whole: nn.Module, weights: str | Path | Mapping[str, Tensor], model: str) -> None:
    """Load a whole network; a class layer that is missing or of another shape stays as it is.

    Args:
        whole: What is loaded into.
        weights: A state dict, or the path of a safetensors file.
        model: Its name, for messages.

    Raises:
        CutError: Other names, shapes or kinds of numbers differ.
        IntegrityError: Values that no network can use, see ``check_values``.
        FormatError: The file is no safetensors file.
        EnvironmentFailure: The file cannot be read.
    """
    state = dict(weights) if isinstance(weights, Mapping) else _read(weights)
    own, layers = whole.state_dict(), class_layer(whole)
    for name in own:
        if name.startswith(layers) and (
            name not in state or getattr(state[name], "shape", None) != own[name].shape
        ):
            state[name] = own[name]
    load_part(whole, state, model, advice=_FROM_WHOLE)
    check_values(
        state, f"Weights of {model}" if isinstance(weights, Mapping) else str(weights), UNUSABLE, own
    )


def _read(path: str | Path) -> dict[str, Tensor]:
    try:
        return deserialize(read_whole(path))
    except EnvironmentFailure as error:
        raise EnvironmentFailure(
            f"The weights cannot be used: {error} Give 'pretrained' or the path of a safetensors file.",
            subject=path,
        ) from error
