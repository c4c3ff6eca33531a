"""The history of a run: rows of losses, and the same as an array for each loss."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from compatkit.errors import UnknownName

OWN = "loss"
"""What the task's own loss may be asked for as; rows call it ``task``."""


class History(list[dict[str, Any]]):
    """Rows ``{"task", "step", "losses": {name: mean}}``, oldest first: a list that takes names too.

    ``history["mnist/loss"]`` is the task's own loss, ``history["mnist/dcc/loss"]`` that of a regularizer,
    ``history["mnist/accuracy"]`` that of the training batches: ``<task>/<name in the rows>``. Each is a float64 array
    ``(rows,)`` with a value for each row that has the name, which a regularizer's loss is missing from while it is not
    active; ``steps`` has the steps of the same rows.
    """

    @overload
    def __getitem__(self, place: SupportsIndex, /) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, place: str, /) -> NDArray[np.float64]: ...
    def __getitem__(self, place: str | SupportsIndex | slice, /) -> Any:
        """Return a row, rows, or the values of a name.

        Raises:
            UnknownName: No row has that name.
        """
        if not isinstance(place, str):
            return super().__getitem__(place)
        return np.array([value for _, value in self._of(place)], dtype=np.float64)

    def steps(self, name: str) -> NDArray[np.int64]:
        """Return how many steps were done at each value of ``name``, int64 ``(rows,)``.

        Raises:
            UnknownName: No row has that name.
        """
        return np.array([step for step, _ in self._of(name)], dtype=np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that there are values of."""
        found = (f"{row['task']}/{_shown(name)}" for row in self for name in row["losses"])
        return tuple(dict.fromkeys(found))

    def _of(self, wanted: str) -> list[tuple[int, float]]:
        """Return step and value of each row that has a name."""
        found = [
            (row["step"], value)
            for row in self
            for name, value in row["losses"].items()
            if wanted in (f"{row['task']}/{name}", f"{row['task']}/{_shown(name)}")
        ]
        if not found:
            raise UnknownName(
                f"The history has nothing called {wanted!r}. It has {', '.join(self.names) or 'no row'}.",
                subject=wanted,
            )
        return found


def _shown(name: str) -> str:
    return OWN if name == "task" else name
