"""The history of a run: rows of losses, and the same as an array for each loss."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from compatkit.errors import UnknownName


class History(list[dict[str, Any]]):
    """Rows ``{"task", "step", "losses": {name: mean}}``, oldest first: a list that takes names too.

    ``history["mnist/accuracy"]`` has the accuracy on the training batches, ``history["mnist/dcc/loss"]`` the loss of a
    regularizer: ``<task>/<name in the rows>``. The task's own loss, ``task`` in the rows, is ``history["mnist/loss"]``
    too. Each is a float64 array ``(rows,)`` of the rows that have the name: a regularizer has no loss while it is not
    active. ``steps`` has the steps of the same rows.
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
        return tuple(dict.fromkeys(f"{row['task']}/{name}" for row in self for name in row["losses"]))

    def _of(self, wanted: str) -> list[tuple[int, float]]:
        """Return step and value of each row that has a name."""
        found = [
            (row["step"], value)
            for row in self
            for name, value in row["losses"].items()
            if wanted == f"{row['task']}/{name}" or (name == "task" and wanted == f"{row['task']}/loss")
        ]
        if not found:
            raise UnknownName(
                f"The history has nothing called {wanted!r}. It has {', '.join(self.names) or 'no row'}.",
                subject=wanted,
            )
        return found
