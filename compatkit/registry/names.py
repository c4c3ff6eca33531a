"""Names, versions and references of components; names are valid on every file system."""

from __future__ import annotations

import re
from functools import total_ordering
from operator import attrgetter
from typing import Literal

import attrs

from compatkit.errors import InvalidName
from compatkit.foundation.codec import is_digest

Bump = Literal["none", "patch", "minor", "major"]

_SEGMENT = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
_NUMBER = r"(0|[1-9][0-9]{0,8})"
VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
ENTRY_NUMBER = "[1-9][0-9]{0,8}"
"""Pattern of the number of an entry in a log."""
ENTRY_NAME = re.compile(rf"(?P<version>{VERSION.pattern})(?:~(?P<number>[2-9]|[1-9][0-9]{{1,8}}))?")
"""Name of the file of a withdrawal: the version, and the number of the entry from the second one on."""
_RANGE = re.compile(rf"\^{_NUMBER}(?:\.{_NUMBER}(?:\.{_NUMBER})?)?")
_VERSION_LIKE = re.compile(r"v?[0-9]+(\.[0-9]+)*")
_RESERVED = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))]
)
_RULE = "use 1 to 64 of a-z, 0-9, '.', '_', '-', with a letter or digit at both ends, such as 'mnist.head'"


def check_segment(segment: str, *, what: str = "name") -> str:
    """Return ``segment`` if it is valid as one part of a name.

    Args:
        segment: Text without a slash.
        what: Description for messages, such as ``"task name"``.

    Raises:
        InvalidName: Other characters, too long, two dots in a row, or reserved by Windows.
    """
    if not isinstance(segment, str) or not _SEGMENT.fullmatch(segment):
        hint = (
            f" (perhaps {segment.lower()!r})"
            if isinstance(segment, str) and _valid_in_lower_case(segment)
            else ""
        )
        raise InvalidName(f"{what} {segment!r:.100} is not valid: {_RULE}{hint}.", subject=segment)
    if ".." in segment:
        raise InvalidName(f"{what} {segment!r} is not valid: no two dots in a row.", subject=segment)
    if segment.split(".")[0] in _RESERVED:
        raise InvalidName(
            f"{what} {segment!r} is not valid: Windows reserves {segment.split('.')[0].upper()}; choose "
            "another.",
            subject=segment,
        )
    return segment


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid component name: one to three segments joined by ``/``.

    Raises:
        InvalidName: A segment is not valid, or there are more than three.
    """
    segments = name.split("/") if isinstance(name, str) else [name]
    if len(segments) > 3:
        raise InvalidName(
            f"component name {name!r:.100} has {len(segments)} segments; at most three, joined by '/'.",
            subject=name,
        )
    for segment in segments:
        check_segment(
            segment, what="component name" if len(segments) == 1 else f"component name {name!r:.100}: part"
        )
    return name


def check_alias(alias: str) -> str:
    """Return ``alias`` if it is valid: one segment that looks neither like a version nor is ``latest``.

    Raises:
        InvalidName: It is not.
    """
    check_segment(alias, what="alias")
    if _VERSION_LIKE.fullmatch(alias) or alias == "latest":
        raise InvalidName(
            f"alias {alias!r} could be mistaken for a version; choose a word such as 'prod' or 'best'.",
            subject=alias,
        )
    return alias


def check_digest(digest: str) -> str:
    """Return ``digest`` if it is ``sha256:`` and 64 lower-case hex digits.

    Raises:
        InvalidName: It is not.
    """
    if not is_digest(digest):
        raise InvalidName(
            f"digest {digest!r:.100} is not 'sha256:' and 64 lower-case hex digits.", subject=digest
        )
    return digest


@total_ordering
@attrs.frozen
class Version:
    """``MAJOR.MINOR.PATCH``: three numbers without leading zeros, and nothing else."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version.

        Raises:
            InvalidName: Not exactly three numbers of at most nine digits, joined by dots.
        """
        match = VERSION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidName(
                f"version {text!r:.100} is not MAJOR.MINOR.PATCH, such as '1.2.0'.", subject=text
            )
        return cls(*map(int, match.groups()))

    def bumped(self, bump: Bump) -> Version:
        """Return the next version after this bump."""
        if bump == "major":
            return Version(self.major + 1, 0, 0)
        if bump == "minor":
            return Version(self.major, self.minor + 1, 0)
        return Version(self.major, self.minor, self.patch + (bump == "patch"))

    def __lt__(self, other: Version) -> bool:
        """Compare the numbers; the method that attrs generates takes three times as long."""
        if type(other) is not Version:
            return NotImplemented
        return (self.major, self.minor, self.patch) < (other.major, other.minor, other.patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


numbers_of = attrgetter("major", "minor", "patch")
"""Return the three numbers of a version; as a key for sorting, several times as fast as comparing versions."""


@attrs.frozen
class Range:
    """``^1.2``: at least this version, and below the next incompatible one.

    The first nonzero number is fixed: ``^1.2`` is 1.2.0 up to below 2.0.0, ``^0.3`` is below 0.4.0.
    """

    low: Version
    parts: int = 3

    @classmethod
    def parse(cls, text: str) -> Range:
        """Read ``^1``, ``^1.2`` or ``^1.2.3``.

        Raises:
            InvalidName: Anything else.
        """
        match = _RANGE.fullmatch(text)
        if match is None:
            raise InvalidName(
                f"version range {text!r:.100} is not one of '^1', '^1.2', '^1.2.0'.", subject=text
            )
        numbers = [int(number) for number in match.groups() if number is not None]
        return cls(Version(*numbers, *[0] * (3 - len(numbers))), len(numbers))

    @property
    def high(self) -> Version:
        """The first version above the range."""
        low = self.low
        if low.major or self.parts == 1:
            return Version(low.major + 1, 0, 0)
        if low.minor or self.parts == 2:
            return Version(0, low.minor + 1, 0)
        return Version(0, 0, low.patch + 1)

    def __contains__(self, version: object) -> bool:
        return isinstance(version, Version) and self.low <= version < self.high

    def __str__(self) -> str:
        return "^" + ".".join(str(self.low).split(".")[: self.parts])


@attrs.frozen
class Reference:
    """Reference to one component: a name and a choice of version.

    ``parse`` sets at most one of ``version``, ``range``, ``alias`` and ``digest``; none of them is the latest
    version. A reference that a store resolved has ``version`` and ``digest``.

    Attributes:
        name: Name of the component.
        version: Exact version.
        range: Range of versions, of which the latest is taken.
        alias: Alias that points to a version.
        digest: Manifest digest, ``sha256:...``.
    """

    name: str
    version: Version | None = None
    range: Range | None = None
    alias: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read ``name``, ``name@1.2.0``, ``name@^1.2``, ``name@sha256:<64 hex>`` or ``name:alias``.

        Raises:
            InvalidName: The text has another form.
        """
        if not isinstance(text, str):
            raise InvalidName(f"a reference is text such as 'digits/mnist.head@1.0.0', got {text!r:.100}.")
        name, at, suffix = text.partition("@")
        if at:
            check_name(name)
            if suffix.startswith("sha256:"):
                return cls(name, digest=check_digest(suffix))
            if suffix.startswith("^"):
                return cls(name, range=Range.parse(suffix))
            return cls(name, version=Version.parse(suffix))
        name, colon, alias = text.partition(":")
        return cls(check_name(name), alias=check_alias(alias) if colon else None)

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.name}@{self.version}"
        if self.digest is not None:
            return f"{self.name}@{self.digest}"
        if self.range is not None:
            return f"{self.name}@{self.range}"
        return f"{self.name}:{self.alias}" if self.alias is not None else self.name


def _valid_in_lower_case(segment: str) -> bool:
    return segment != segment.lower() and _SEGMENT.fullmatch(segment.lower()) is not None
