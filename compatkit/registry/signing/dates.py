"""Times in UTC with a resolution of seconds, and ends of validity."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from compatkit.errors import UsageError

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_DURATION = re.compile(r"([1-9]\d{0,5})([hdwy])", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}


def now() -> datetime:
    """Return the current time, UTC, without fractions of a second."""
    return datetime.now(UTC).replace(microsecond=0)


def format_time(moment: datetime) -> str:
    """Format a time as ``"2026-01-31T12:00:00Z"``."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def parse_time(text: object) -> datetime | None:
    """Parse a time formatted by ``format_time``; return None for other texts."""
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def parse_expiry(text: str, *, start: datetime | None = None) -> datetime:
    """Parse the end of a period of validity.

    Args:
        text: ``"365d"``, ``"12h"``, ``"8w"``, ``"2y"`` from ``start``, a day ``"2027-01-31"`` (its beginning, UTC),
            or a time as formatted by ``format_time``.
        start: Start of the period; None for the current time.

    Raises:
        UsageError: Malformed, not a calendar date, or not after ``start``.
    """
    begin = now() if start is None else start
    match = _DURATION.fullmatch(text)
    try:
        if match is not None:
            end: datetime | None = begin + timedelta(hours=int(match[1]) * _HOURS[match[2]])
        else:
            end = parse_time(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except OverflowError:
        end = None
    if end is None:
        raise UsageError(
            "Expected a duration (12h, 365d, 8w, 2y), a day (2027-01-31), or a time (2027-01-31T12:00:00Z), got "
            f"{text!r:.80}."
        )
    if end <= begin:
        raise UsageError(
            f"Expected an end after {format_time(begin)}, got {text!r}, which is {format_time(end)}."
        )
    return end
