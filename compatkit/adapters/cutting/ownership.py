"""Assign each parameter and buffer of a cut network to one part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from torch import Tensor, nn

from compatkit.adapters.modelconfig import class_layer
from compatkit.errors import CutError

Part = Literal["extractor", "head"]


def state_of(whole: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, including non-persistent buffers and aliases.

    Returns:
        The tensors themselves, by dotted name; an alias is listed under each of its names.
    """
    return {
        **dict(whole.named_parameters(remove_duplicate=False)),
        **dict(whole.named_buffers(remove_duplicate=False)),
    }


def owners(whole: nn.Module, used: Mapping[Part, Iterable[int]], boundary: str | None) -> dict[str, Part]:
    """Return the side of every parameter and buffer.

    A tensor that neither side uses goes to the side of its module's other tensors, else by position: after the cut
    module (or in the class layer) to the head.

    Args:
        whole: Network.
        used: ``id`` of the used tensors by side.
        boundary: Path of the cut module; None if the head begins with the class layer.

    Raises:
        CutError: A parameter or a buffer of the state dict is used on both sides.
    """
    state = state_of(whole)
    left, right = set(used["extractor"]), set(used["head"])
    persistent = set(whole.state_dict(keep_vars=True))
    shared = [name for name, tensor in state.items() if id(tensor) in left & right and name in persistent]
    if shared:
        names = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
        raise CutError(
            f"{names}: used before and after the cut, so the parts could not be trained or "
            "stored apart. Split before the first or after the last use.",
            subject=shared,
        )
    sides: dict[str, Part] = {}
    for name, tensor in state.items():
        if id(tensor) in left or id(tensor) in right:
            sides[name] = "head" if id(tensor) in right else "extractor"
    module_sides: dict[str, Part] = {
        name.rpartition(".")[0]: side for name, side in sides.items() if "." in name
    }
    late = _after(whole, boundary)
    for name in set(state) - set(sides):
        module = name.rpartition(".")[0]
        default: Part = "head" if module in late else "extractor"
        sides[name] = module_sides.get(module, default)
    return sides


def _after(whole: nn.Module, boundary: str | None) -> set[str]:
    """Return the modules registered after the cut module, or those of the class layer."""
    paths = [name for name, _ in whole.named_modules(remove_duplicate=False)]
    if boundary is None:
        layers = class_layer(whole)
        return {path for path in paths if f"{path}.".startswith(layers)}
    inside = [i for i, path in enumerate(paths) if path == boundary or path.startswith(f"{boundary}.")]
    return set(paths[max(inside) + 1 :])
