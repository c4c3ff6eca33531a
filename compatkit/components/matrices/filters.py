"""Filters of a matrix's cells, ``FIELD=VALUE``; all must match.

Fields are ``state``, ``wiring``, ``promise`` and ``grade``, with comma-separated alternatives, and ``accuracy`` and
``recovered`` with ``>=`` or ``<=``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import attrs

from compatkit.contracts.evidence import Cell, State
from compatkit.contracts.grades import Grade
from compatkit.contracts.report import Promise, Wiring
from compatkit.errors import UsageError, suggest
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.limits import OneOf

CHOICES: Mapping[str, tuple[str, ...]] = {
    "wiring": get_args(Wiring),
    "promise": get_args(Promise),
    "state": get_args(State)[:-1],
    "grade": get_args(Grade),
}
"""Fields of cells and their values."""
KNOWN_BEFORE = ("wiring", "promise", "state")
"""Fields that are known before a measurement; ``state`` is the state at that time."""
NUMBERS = ("accuracy", "recovered")
_FILTER = re.compile(r"([^=<>]+)(=|>=|<=)(.*)", re.DOTALL)


@attrs.frozen
class Filter:
    """One filter.

    Attributes:
        text: Filter as the caller wrote it.
        field: Field of a cell.
        values: Alternatives; empty for numbers.
        minimum: Smallest matching number.
        maximum: Largest matching number.
    """

    text: str
    field: str
    values: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf

    def matches(self, cell: Cell) -> bool:
        """Return whether a cell matches; one without a figure does not match any number."""
        if self.values:
            return getattr(cell, self.field) in self.values
        if self.field == "accuracy":
            value = cell.restricted.accuracy if cell.restricted is not None else None
        else:
            value = cell.recovered
        return value is not None and self.minimum <= value <= self.maximum


def first_mismatch(filters: Sequence[Filter], cell: Cell, *, before: bool) -> str:
    """Return the first filter that a cell does not match, or empty.

    Args:
        filters: Filters to apply.
        cell: Cell to test.
        before: True to test only fields known before a measurement, False to test only the others.
    """
    relevant = (item for item in filters if (item.field in KNOWN_BEFORE) == before)
    return next((item.text for item in relevant if not item.matches(cell)), "")


def parse(texts: str | Iterable[str]) -> tuple[Filter, ...]:
    """Parse filters.

    Args:
        texts: Each ``FIELD=VALUE``, ``FIELD>=NUMBER`` or ``FIELD<=NUMBER``.

    Raises:
        UsageError: A filter is malformed, its field or value is unknown, or it is not a string.
    """
    return tuple(map(_filter, texts_of(texts, "where", "a filter such as 'grade=compatible'")))


def _filter(text: str) -> Filter:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"expected a filter FIELD=VALUE, such as grade=compatible or accuracy>=.9, got {text!r:.100}.",
            subject=text,
        )
    field, sign, value = match[1].strip(), match[2], match[3].strip()
    fields = (*CHOICES, *NUMBERS)
    if field not in fields:
        raise UsageError(
            f"Unknown filter {field!r:.80}.{suggest(field, fields)} Filters are {', '.join(fields)}. Select components "
            "by name; `compatkit search` finds them by tags, networks and classes.",
            subject=field,
        )
    if (field in CHOICES) != (sign == "="):
        signs = "=" if field in CHOICES else ">= or <="
        raise UsageError(f"{field!r} is compared by {signs}, not by {sign}.", subject=field)
    if field in CHOICES:
        values = tuple(item.strip() for item in value.split(","))
        for item in values:
            OneOf(CHOICES[field]).check("where", **{field: item})
        return Filter(text, field, values)
    number = _number(field, value)
    return Filter(text, field, (), *((number, math.inf) if sign == ">=" else (-math.inf, number)))


def _number(field: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (field == "accuracy" and not 0 <= number <= 1):
        what = "a share from 0 to 1" if field == "accuracy" else "a number such as .9"
        raise UsageError(f"{field}: expected {what}, got {value!r:.80}.", subject=value)
    return number
