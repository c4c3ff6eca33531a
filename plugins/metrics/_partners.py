"""Find the other network's layer of the same name, for metrics of two networks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from compatkit.errors import DataError


def partner(metric: str, name: str, outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output of the other network's layer of the same name, ``(batch, ...)``.

    Args:
        metric: Name of the metric, for messages.
        name: Name of the layer, with the number of the call.
        outputs: Outputs of the other network.

    Raises:
        DataError: There is no output of that name.
    """
    if name not in outputs:
        raise DataError(
            f"{metric}: the other network has no output {name!r}; it has {', '.join(outputs)}. A layer is compared "
            "with the one of the same name, which must be called as often."
        )
    return outputs[name]
