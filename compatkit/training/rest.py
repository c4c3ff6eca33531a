"""The rest of another network, as the head of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from compatkit.errors import UsageError


@attrs.frozen
class Rest:
    """What comes after a split point of a network: the architecture of a head for extractors of other architectures.

    Attributes:
        backbone: Model name, for example ``"mobilenetv2_cifar"``.
        split: Split point; what lies before it is dropped.
        builder: Who builds it.
        kwargs: Further keyword arguments of the backbone (JSON values).
    """

    backbone: str
    split: str
    builder: str = "timm"
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, value: object) -> Rest | None:
        """Return a rest as it is, or from a table of its attributes; None for None.

        Raises:
            UsageError: It is neither.
        """
        if value is None or isinstance(value, Rest):
            return value
        names = [field.name for field in attrs.fields(cls)]
        needed = {"backbone", "split"}
        if not isinstance(value, Mapping) or not needed <= value.keys() or not value.keys() <= set(names):
            raise UsageError(
                f"Task.rest expects a table of {', '.join(names)}, such as {{'backbone': 'mobilenetv2_cifar', 'split': "
                f"'blocks.9'}}; got {value!r:.100}."
            )
        if not all(isinstance(value.get(name, ""), str) for name in names[:3]):
            raise UsageError(f"Task.rest expects texts for {', '.join(names[:3])}; got {value!r:.100}.")
        if not isinstance(value.get("kwargs", {}), Mapping):
            raise UsageError(f"Task.rest expects a table as kwargs; got {value!r:.100}.")
        return cls(**value)
