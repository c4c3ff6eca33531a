"""An extractor that runs the network's own code and stops at the cut module.

Code that branches on the image's size, such as the resampling of position embeddings, cannot be traced for all sizes
at once; as it ends before the cut, it need not be.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from compatkit.adapters.cutting.canonical import without_other
from compatkit.adapters.cutting.ownership import Part


def stopped(whole: nn.Module, split: str, sides: Mapping[str, Part], names: tuple[str, ...]) -> nn.Module:
    """Return the network without the head's layers, which gives what the module ``split`` gives.

    Args:
        whole: Shares its tensors.
        split: Path of the cut module.
        sides: Side of every parameter and buffer.
        names: Of the feature ports, in order.
    """
    extractor = without_other(whole, "", sides, "extractor", named=True)
    extractor.__class__ = _stopping_class(type(whole))
    extractor.__dict__.update(stops_at=split, port_names=names)
    return extractor


class _Reached(Exception):
    """Carries the output of the cut module out of the network's code."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def _stop(module: nn.Module, args: Any, output: Any) -> None:
    raise _Reached(output)


@functools.cache
def _stopping_class(cls: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, x: Tensor) -> Any:
        """Images to features; several features are one tuple."""
        # The module is the whole network's own, so the hook stays for this call only.
        hook = self.get_submodule(self.stops_at).register_forward_hook(_stop)
        try:
            cls.forward(self, x)
        except _Reached as reached:
            output = reached.output
            return output if isinstance(output, Tensor) else tuple(output)
        finally:
            hook.remove()
        raise RuntimeError(f"{self.stops_at} was not reached")

    return type(f"{cls.__name__}Stopped", (cls,), {"forward": forward, "__module__": cls.__module__})
