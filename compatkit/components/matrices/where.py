"""Filters of a matrix, ``FIELD=VALUE``, for components and cells; all must match.

Fields of components are those of a search: ``tag:KEY``, ``model``, ``channels``, ``class``, ``anchor``, ``parent``,
``text``, ``latest``. They apply to both sides (``class`` only to heads), or to one with the prefix ``extractor.`` or
``head.``. Fields of cells are ``state``, ``wiring``, ``promise`` and ``grade``, with comma-separated alternatives, and
``accuracy`` and ``recovered`` with ``>=`` or ``<=``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import attrs

from compatkit.contracts.evidence import Cell, Grade, State
from compatkit.contracts.report import Promise, Wiring
from compatkit.errors import UsageError, suggest
from compatkit.foundation.arguments import texts_of
from compatkit.registry.index.search import Query

SIDES = ("extractor", "head")
LISTED: Mapping[str, tuple[str, ...]] = {
    "wiring": get_args(Wiring),
    "promise": get_args(Promise),
    "state": get_args(State)[:-1],
    "grade": get_args(Grade),
}
"""Fields of cells and their values."""
BEFORE = ("wiring", "promise", "state")
"""Fields known before a measurement; ``state`` is the state at that time."""
NUMBERS = ("accuracy", "recovered")
SEARCHED = ("model", "channels", "class", "anchor", "parent", "text", "latest")
TAG = "tag:"
_FILTER = re.compile(r"([^=<>]+)(=|>=|<=)(.*)", re.DOTALL)


@attrs.frozen
class Condition:
    """One filter of cells.

    Attributes:
        text: As written.
        field: Field of a cell.
        values: Alternatives; empty for numbers.
        least: Smallest matching number.
        most: Largest matching number.
    """

    text: str
    field: str
    values: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf

    def fits(self, cell: Cell) -> bool:
        """Return whether a cell matches; one without a figure does not match any number."""
        if self.values:
            return getattr(cell, self.field) in self.values
        if self.field == "accuracy":
            value = cell.restricted.accuracy if cell.restricted is not None else None
        else:
            value = cell.recovered
        return value is not None and self.least <= value <= self.most


@attrs.frozen
class Where:
    """Filters of components by side, and of cells.

    Attributes:
        texts: The filters as written.
        sides: Search fields by ``"extractor"`` and ``"head"``.
        conditions: Filters of cells.
    """

    texts: tuple[str, ...] = ()
    sides: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    conditions: tuple[Condition, ...] = ()

    def query(self, side: str) -> Query | None:
        """Return the search for components of a side; None without filters.

        Raises:
            UsageError: A filter is invalid.
        """
        fields = self.sides.get(side)
        return Query(kind=side, withdrawn=True, **fields) if fields else None

    def refused(self, cell: Cell, *, before: bool) -> str:
        """Return the first filter that a cell does not match, or empty.

        Args:
            cell: The cell.
            before: Check only fields known before a measurement, or else only the rest.
        """
        conditions = (condition for condition in self.conditions if (condition.field in BEFORE) == before)
        return next((condition.text for condition in conditions if not condition.fits(cell)), "")


def parse(texts: str | Iterable[str]) -> Where:
    """Parse filters.

    Args:
        texts: Each ``FIELD=VALUE``, ``FIELD>=NUMBER`` or ``FIELD<=NUMBER``.

    Raises:
        UsageError: A filter is malformed, or its field or value is unknown; or these are no texts.
    """
    written = tuple(texts_of(texts, "where", "a filter such as 'grade=compatible'"))
    sides: dict[str, dict[str, Any]] = {side: {} for side in SIDES}
    conditions: list[Condition] = []
    for text in written:
        match = _FILTER.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise UsageError(
                f"expected a filter FIELD=VALUE, such as tag:dataset=mnist or grade=compatible, got {text!r:.100}.",
                subject=text,
            )
        field, sign, value = match[1].strip(), match[2], match[3].strip()
        if field in LISTED and sign == "=":
            conditions.append(Condition(text, field, _listed(field, value)))
        elif field in NUMBERS and sign != "=":
            number = _number(field, value)
            least, most = (number, math.inf) if sign == ">=" else (-math.inf, number)
            conditions.append(Condition(text, field, least=least, most=most))
        else:
            _search(sides, field, sign, value, text)
    return Where(written, sides, tuple(conditions))


def _search(sides: Mapping[str, dict[str, Any]], field: str, sign: str, value: str, text: str) -> None:
    """Add a filter of components to the sides that it applies to."""
    front, dot, rest = field.partition(".")
    side, name = (front, rest) if dot and front in SIDES else ("", field)
    if sign != "=" or not (name in SEARCHED or (name.startswith(TAG) and name != TAG)):
        raise _unknown(field, sign)
    meant = (side,) if side else ("head",) if name == "class" else SIDES
    for target in meant:
        fields = sides[target]
        if name.startswith(TAG):
            tags = fields.setdefault("tags", {})
            _check_equal(tags.setdefault(name.removeprefix(TAG), value), value, text)
        else:
            key = {"class": "label"}.get(name, name)
            _check_equal(fields.setdefault(key, read := _read(name, value)), read, text)


def _check_equal(existing: Any, value: Any, text: str) -> None:
    if existing != value:
        raise UsageError(
            f"{text!r:.100}: the same field must equal {existing!r}, too; leave one of them out.",
            subject=text,
        )


def _read(name: str, value: str) -> Any:
    if name == "channels":
        if not value.isascii() or not value.isdigit():
            raise UsageError(f"channels: expected a whole number, got {value!r:.80}.", subject=value)
        return int(value[:20])
    if name == "latest":
        if value not in ("yes", "no"):
            raise UsageError(f"latest: expected yes or no, got {value!r:.80}.", subject=value)
        return value == "yes"
    if not value:
        raise UsageError(f"{name}: expected a value after '='.", subject=value)
    return value


def _listed(field: str, value: str) -> tuple[str, ...]:
    known, values = LISTED[field], tuple(item.strip() for item in value.split(","))
    for item in values:
        if item not in known:
            hint = suggest(item, known)
            raise UsageError(f"{field} is one of {', '.join(known)}, got {item!r:.80}.{hint}", subject=value)
    return values


def _number(field: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{field}: expected a number such as .9, got {value!r:.80}.", subject=value)
    if field == "accuracy" and not 0 <= number <= 1:
        raise UsageError(f"{field} is a share from 0 to 1, got {value!r:.80}.", subject=value)
    return number


def _unknown(field: str, sign: str) -> UsageError:
    fields = (*LISTED, *NUMBERS, *SEARCHED)
    if field in fields:
        signs = "=" if field not in NUMBERS else ">= or <="
        return UsageError(f"{field!r} is compared by {signs}, not by {sign}.", subject=field)
    hint = suggest(field, (*fields, "tag:KEY"))
    return UsageError(
        f"there is no filter {field!r:.80}.{hint} Of cells there are {', '.join((*LISTED, *NUMBERS))}; of components "
        f"tag:KEY, {', '.join(SEARCHED)}, also with extractor. or head. in front.",
        subject=field,
    )
