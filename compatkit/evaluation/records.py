"""Convert measured cells to the registry's records and back: conditions, settings and figures.

Up to 90,000 results are read at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import attrs
import msgspec

from compatkit.contracts.evidence import METRIC, Cell, Figure, weak_or_compatible
from compatkit.contracts.grades import Grade
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError, UsageError
from compatkit.evaluation.conditions import key_of

if TYPE_CHECKING:
    from compatkit.evaluation.component import Component
    from compatkit.registry.evidence import StoredResult
    from compatkit.registry.store import Store

SHOWN_DAMAGED = 3
"""Largest number of damaged results in a message."""
CLASSES = "classes"
"""Stored with the settings: the common classes, named as in the data set."""
WIRING = "wiring"
_NOT_KEPT = frozenset(("own",))
"""Settings about the relation of the parts; recomputed from their manifests instead of stored."""
_KEPT_AS: Mapping[Grade, Grade] = {"weak": "compatible"}
"""Records have no weak grade; it is recomputed from the figures on reading."""
_GRADES = frozenset(get_args(Grade)) - _KEPT_AS.keys() - {"stale"}
SLACK = 1e-9
"""Tolerance for rounding of Wilson bounds that should be exactly 0 or 1."""
_Share = Annotated[float, msgspec.Meta(ge=-SLACK, le=1 + SLACK)]
_Written = tuple[
    _Share, Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=1)], _Share, _Share
]
"""Accuracy, correct count, image count and the bounds of the interval."""


class _Settings(msgspec.Struct):
    """The settings that every result has."""

    metric: str
    metric_version: str
    policy: str
    batch_size: Annotated[int, msgspec.Meta(ge=1)]
    seed: int
    precision: str
    data: str
    data_digest: str
    images: int
    normalised: bool
    bound_head: str
    classes: list[str]
    wiring: str


class _Figures(msgspec.Struct):
    """The figures of a result."""

    grade: str
    restricted: _Written
    unrestricted: _Written | None
    chance: float | None
    bound: _Written | None
    recovered: float | None
    difference: tuple[float, float] | None


def record(cell: Cell) -> dict[str, dict[str, Any]]:
    """Return ``conditions``, ``settings`` and ``figures`` of a measured cell as JSON values."""
    settings: dict[str, Any] = {name: value for name, value in cell.settings.items() if name not in _NOT_KEPT}
    return {
        "conditions": key_of(cell.settings),
        "settings": {**settings, CLASSES: list(cell.common), WIRING: cell.wiring},
        "figures": {
            "grade": _KEPT_AS.get(cell.grade, cell.grade),
            "restricted": _written(cell.restricted),
            "unrestricted": _written(cell.unrestricted),
            "chance": cell.chance,
            "bound": _written(cell.bound),
            "recovered": cell.recovered,
            "difference": None if cell.difference is None else list(cell.difference),
        },
    }


WRITERS = 16
"""Threads that write results: a disk makes many files durable in the time of one."""


def keep(store: Store, parts: Iterable[Component], cells: Sequence[Cell]) -> bool:
    """Record measured cells as evidence; warn if the registry cannot be written, since the figures exist anyway.

    A cell measured with adapters is stored under a key that names them, so it is never read as one of the bare pair.
    Cells read as stale are stored already.

    Args:
        store: Registry that records the cells.
        parts: All extractors and heads that a cell names.
        cells: Measured cells.

    Returns:
        Whether all were recorded.
    """
    functions = {part.reference: part.function for part in parts}

    def add(cell: Cell) -> None:
        store.evidence.add(
            functions[cell.extractor],
            functions[cell.head],
            **record(cell),
            measured_as={"extractor": cell.extractor, "head": cell.head},
        )

    new = [cell for cell in cells if cell.restricted is not None and cell.grade != "stale"]
    try:
        for cell in new[:1]:  # alone: it makes the folders that all share, and asks for the key that signs
            add(cell)
        if len(new) > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(WRITERS, len(new) - 1)) as pool:
                list(pool.map(add, new[1:]))
    except (EnvironmentFailure, IntegrityError, UsageError) as error:
        warnings.warn(f"The figures are not kept as evidence: {error}", stacklevel=3)
        return False
    return True


def is_accuracy(result: StoredResult) -> bool:
    """Return whether a result is an accuracy, or damaged, and not a figure of a metric plugin."""
    return bool(result.error) or result.settings.get("metric") == METRIC


@attrs.frozen(eq=False)
class Cells:
    """Restores cells from results; shared settings are checked once, damaged results are reported together."""

    _known: dict[tuple[int, int], tuple[Any, ...]] = attrs.field(init=False, factory=dict)
    _damaged: list[str] = attrs.field(init=False, factory=list)

    def settings(self, result: StoredResult) -> Mapping[str, Any]:
        """Return the settings of a result after checking that they are complete and match its key.

        Raises:
            FormatError: The result is damaged or not a measured cell.
        """
        return self._shared(result)[0]

    def of(
        self, result: StoredResult, extractor: str, head: str, *, promise: str = "none", own: bool = False
    ) -> Cell:
        """Return the cell of a result, with the present names of the parts.

        Args:
            result: The result; settings and conditions that are one object for many results are checked once.
            extractor: Reference of the row.
            head: Reference of the column.
            promise: Promise according to the present contracts.
            own: Whether the head was trained with this extractor.

        Raises:
            FormatError: The result is damaged or not a measured cell.
        """
        shared = self._shared(result)
        figures = read_figures(result.figures)
        return Cell(extractor, head, shared[2], promise, *figures, shared[3], shared[own])

    def leave_out(self, extractor: str, head: str, error: FormatError) -> None:
        """Note the pair of a result that cannot be read.

        Args:
            extractor: Its reference.
            head: Its reference.
            error: Description of the damage.
        """
        self._damaged.append(f"{extractor} with {head}: a result is left out: {str(error).rstrip('.')}")

    def warn(self, *, stacklevel: int) -> None:
        """Warn once of all results left out; there may be thousands."""
        if not self._damaged:
            return
        more = len(self._damaged) - SHOWN_DAMAGED
        text = "; ".join(
            [*self._damaged[:SHOWN_DAMAGED], *([f"and {more:,} more results"] if more > 0 else [])]
        )
        warnings.warn(
            f"{text}; as if they had not been measured. `compatkit verify --repair` moves damaged files to "
            "quarantine, `compatkit matrix` measures again.",
            stacklevel=stacklevel,
        )

    def _shared(self, result: StoredResult) -> tuple[Any, ...]:
        """Return the settings, those of the extractor's own head, the wiring and the common classes."""
        if result.error:
            raise FormatError(result.error)
        settings, conditions = result.settings, result.conditions
        key = id(settings), id(conditions)
        known = self._known.get(key)
        if known is None:
            check_settings(settings, conditions)
            plain = {name: value for name, value in settings.items() if name not in (CLASSES, WIRING)}
            shared = plain | {"own": False}, plain | {"own": True}, settings[WIRING], tuple(settings[CLASSES])
            # keep references to both objects so that their ids are not reused
            known = self._known[key] = (*shared, settings, conditions)
        return known


def check_settings(settings: Mapping[str, Any], key: Mapping[str, Any]) -> None:
    """Raise if settings are not those of a measured cell or do not match their key.

    Args:
        settings: As ``record`` writes them.
        key: The conditions stored with them.

    Raises:
        FormatError: The settings are damaged.
    """
    try:
        msgspec.convert(settings, _Settings)
    except msgspec.ValidationError as error:
        raise FormatError(f"the settings of a result are not usable: {error}; measure again.") from error
    rest = {name: value for name, value in settings.items() if name not in (CLASSES, WIRING)}
    if not all(isinstance(value, str | int | float) for value in rest.values()):
        raise FormatError("the settings of a result are texts and numbers.")
    if key_of(rest) != key:
        raise FormatError("the settings of a result are not those of the key it is stored under.")


def read_figures(figures: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    """Return grade, restricted, unrestricted, chance, bound, recovered and difference; see ``Cell``.

    Raises:
        FormatError: A figure is missing or malformed.
    """
    try:
        read = msgspec.convert(figures, _Figures)
    except msgspec.ValidationError as error:
        raise FormatError(f"the figures of a result are not complete: {error}.") from error
    grade, chance = read.grade, read.chance
    if grade not in _GRADES:
        raise FormatError(f"a result has no grade {grade!r:.40}.")
    restricted, unrestricted, bound = map(_figure, (read.restricted, read.unrestricted, read.bound))
    if grade == "compatible" and chance is not None:
        grade = weak_or_compatible(read.restricted[0], chance, 1.0 if bound is None else bound.accuracy)
    return grade, restricted, unrestricted, chance, bound, read.recovered, read.difference


def _written(figure: Figure | None) -> list[float] | None:
    """Return accuracy, correct count, image count and the bounds of the interval."""
    if figure is None:
        return None
    return [figure.accuracy, figure.correct, figure.count, figure.low, figure.high]


def _figure(value: _Written | None) -> Figure | None:
    if value is not None and value[1] > value[2]:
        raise FormatError(f"a result cannot have {value[1]} correct of {value[2]}.")
    return None if value is None else Figure(*value)
