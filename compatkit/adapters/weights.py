"""Load weights into a part or a full network, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
from torch import Tensor, nn

from compatkit.adapters.modelconfig import InputSpec, class_layer, input_of
from compatkit.errors import CutError, EnvironmentFailure, FormatError, UsageError
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import loads
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.header import read_whole
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values, compare
from compatkit.registry.weights.tensorfile import deserialize

TENSORS, CONFIG = "model.safetensors", "config.json"
"""Files of a folder of weights, as timm's ``save_for_hf`` writes it."""
LARGEST_CONFIG = 2**24
_FROM_ONE = "Take weights and blueprint from one component; the library that built it may have changed."
_FROM_WHOLE = "Give weights of this architecture, for images of the same size and channels (size, kwargs)."


@attrs.frozen
class Located:
    """A file of weights, with the metadata of its folder.

    Attributes:
        path: Path of the safetensors file.
        architecture: timm's name without a tag, if known.
        kwargs: Arguments that the network was built with.
        images: Images that it was trained on, if known.
    """

    path: Path
    architecture: str | None = None
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    images: InputSpec | None = None


def locate(weights: str | Path) -> Located:
    """Return the file of named weights: a file, a folder, ``local-dir:FOLDER``, or ``hf-hub:OWNER/NAME``.

    Raises:
        UsageError: The folder has no safetensors file, or the Hub has no such repository.
        FormatError: Its ``config.json`` is damaged.
        EnvironmentFailure: It cannot be read or downloaded.
    """
    if str(weights).startswith("hf-hub:"):
        from compatkit.adapters.timm import fetch

        folder = fetch(str(weights).removeprefix("hf-hub:"), (CONFIG, TENSORS))
    else:
        name = weights.removeprefix("local-dir:") if isinstance(weights, str) else weights
        folder = Path(local(name, "a file of weights"))
    if not folder.is_dir():
        return Located(folder)
    path = folder / TENSORS
    if not path.is_file():
        content = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5])
        raise UsageError(
            f"{folder} has no {TENSORS} (it holds {content or 'nothing'}); pickles are never loaded. timm's "
            "save_for_hf writes it with safe_serialization=True.",
            subject=folder,
        )
    if not (folder / CONFIG).is_file():
        return Located(path)
    with environment("read", folder / CONFIG):
        with (folder / CONFIG).open("rb") as file:
            data = file.read(LARGEST_CONFIG + 1)
    try:
        stated = loads(data, what=CONFIG, max_bytes=LARGEST_CONFIG)
        config, kwargs = {**stated.get("pretrained_cfg", stated)}, {**stated.get("model_args", {})}
        images = input_of(SimpleNamespace(pretrained_cfg=config), kwargs, None)  # type: ignore[arg-type]
        kwargs.setdefault("in_chans", images.channels)
        return Located(path, str(stated["architecture"]).partition(".")[0], kwargs, images)
    except (FormatError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{folder / CONFIG} is not a configuration as timm writes it: {error}", subject=folder
        ) from error


def load_part(
    part: nn.Module, state: Mapping[str, Tensor], owner: str, *, share: bool = False, advice: str = _FROM_ONE
) -> None:
    """Load all tensors of a part; names must match exactly.

    Args:
        part: Part to load into.
        state: Tensors by name.
        owner: Name of the part, for messages.
        share: Whether the part may use the tensors themselves if the dtypes match and none of its own tensors are
            shared; else they are copied.
        advice: End of the message.

    Raises:
        CutError: Names, shapes or dtypes differ.
    """
    own = part.state_dict()
    if mismatch := compare(state, own):
        raise CutError(
            f"The weights are not those of {owner}: {'; '.join(mismatch.sentences())}. {advice}",
            subject=owner,
        )
    part.load_state_dict(dict(state), strict=True, assign=share and _takes(own, state))


def _takes(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> bool:
    """Return whether the tensors of a part can be replaced one by one: none are shared, and dtypes match."""
    pointers = [tensor.untyped_storage().data_ptr() for tensor in own.values() if tensor.numel()]
    return len(set(pointers)) == len(pointers) and all(own[name].dtype == state[name].dtype for name in own)


def load_whole(whole: nn.Module, weights: str | Path | Mapping[str, Tensor], model: str) -> None:
    """Load a full network; a class layer that is missing or of another shape keeps its values.

    Args:
        whole: Network to load into.
        weights: A state dict, or the path of a safetensors file.
        model: Name of the network, for messages.

    Raises:
        CutError: Other names, shapes or dtypes differ.
        IntegrityError: Values are unusable, see ``check_values``.
        FormatError: The file is not a safetensors file.
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
