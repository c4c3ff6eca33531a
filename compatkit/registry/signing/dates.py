"""Dates in UTC, written to the second, and how long something is valid."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from compatkit.errors import UsageError

_WRITTEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_SPAN = re.compile(r"([1-9]\d{0,5})([hdwy])", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}


def now() -> datetime:
    """Return this second, UTC."""
    return datetime.now(UTC).replace(microsecond=0)


def written(moment: datetime) -> str:
    """Return ``"2026-01-31T12:00:00Z"``."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def read(text: object) -> datetime | None:
    """Return the moment that ``written`` wrote; None if it did not write this."""
    if not isinstance(text, str) or not _WRITTEN.fullmatch(text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def until(text: str, *, start: datetime | None = None) -> datetime:
    """Return when something ends.

    Args:
        text: ``"365d"``, ``"12h"``, ``"8w"``, ``"2y"`` from ``start``, a day ``"2027-01-31"`` (its beginning, UTC),
            or a moment as ``written`` writes it.
        start: None takes this second.

    Raises:
        UsageError: Written otherwise, no moment of the calendar, or not after ``start``.
    """
    begin = now() if start is None else start
    match = _SPAN.fullmatch(text)
    try:
        if match is not None:
            found: datetime | None = begin + timedelta(hours=int(match[1]) * _HOURS[match[2]])
        else:
            found = read(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except OverflowError:
        found = None
    if found is None:
        raise UsageError(
            f"{text!r:.80} is not an end: give a duration (12h, 365d, 8w, 2y), a day (2027-01-31), or a time "
            "(2027-01-31T12:00:00Z)."
        )
    if found <= begin:
        raise UsageError(f"{text!r} ends at {written(found)}, which is not after {written(begin)}.")
    return found
