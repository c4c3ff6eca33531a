"""What the other network gave for a layer: metrics of two networks compare layers of one name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from compatkit.errors import DataError


def partner(metric: str, name: str, outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the other network's layer of the same name.

    Args:
        metric: That asks.
        name: Of the layer, with the number of its call.
        outputs: Of the other network.

    Raises:
        DataError: It has no output of that name.
    """
    if name not in outputs:
        raise DataError(
            f"{metric}: the other network gave nothing under the name {name!r}; it gave {', '.join(outputs)}. A layer "
            "is compared with the one of its name, called as often."
        )
    return outputs[name]
