"""Limits of settings, numbers and words; their messages serve Python, recipes, studies and plugins."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection
from numbers import Real
from typing import Any

import attrs

from compatkit.errors import CompatkitError, UsageError, suggest


class Limit:
    """Restriction of a value: a validator for attrs fields, and a check of function arguments."""

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Validate an attribute.

        Raises:
            UsageError: The value is outside the limit; ``subject`` is the setting's name.
        """
        self._demand("", UsageError, attribute.name, value)

    def check(self, owner: str, error: type[CompatkitError] = UsageError, /, **arguments: Any) -> None:
        """Check arguments of a function.

        Args:
            owner: Name of the function or object, for the message.
            error: Class of the error.
            arguments: Values by name.

        Raises:
            CompatkitError: A value is outside the limit; the class is ``error``.
        """
        for name, value in arguments.items():
            self._demand(f"{owner}: ", error, name, value)

    def takes(self, value: Any) -> bool:
        """Return whether a value is within the limits."""
        raise NotImplementedError

    def hint(self, value: Any) -> str:
        """Return a suggestion to append to the message, or an empty text."""
        return ""

    def _demand(self, owner: str, error: type[CompatkitError], name: str, value: Any) -> None:
        if not self.takes(value):
            # Python refuses to write integers of more than 4,300 digits
            long = type(value) is int and value.bit_length() > 1024
            shown = f"an integer of {value.bit_length():,} bits" if long else f"{value!r:.60}"
            raise error(f"{owner}'{name}' must be {self}; got {shown}.{self.hint(value)}", subject=name)


def native(value: Any) -> Any:
    """Return a numpy number as a Python number, and anything else unchanged."""
    item = getattr(value, "item", None) if isinstance(value, Real) else None
    return value if item is None else item()


@attrs.frozen(kw_only=True)
class Number(Limit):
    """Finite numbers within bounds; True and False do not count as numbers.

    As a validator it replaces numpy numbers by Python numbers, which JSON can hold.

    Attributes:
        least: Lower bound.
        above: Exclusive lower bound.
        most: Upper bound.
        below: Exclusive upper bound.
        whole: Whether only integers are accepted.
        infinite: Whether infinity is accepted.
        optional: Whether None is accepted.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    whole: bool = False
    infinite: bool = False
    optional: bool = False

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Validate an attribute; replace a numpy number by a Python number."""
        number = native(value)
        if number is not value:
            object.__setattr__(instance, attribute.name, number)
        super().__call__(instance, attribute, number)

    def takes(self, value: Any) -> bool:
        """Return whether a value is a number within the bounds."""
        if value is None:
            return self.optional
        if type(value) is not int and (self.whole or not isinstance(value, float)):
            return False
        # a float, or an integer within the range of floats
        finite = self.whole or abs(value) <= sys.float_info.max
        return (
            (finite or (self.infinite and value == math.inf))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def hint(self, value: Any) -> str:
        """Return advice to convert numbers of other libraries."""
        foreign = isinstance(value, Real) and not isinstance(value, (int, float))
        return f" Convert the {type(value).__name__} by .item()." * foreign

    def __str__(self) -> str:
        closed = self.least is not None
        bounds = {
            "from": self.least,
            "above": self.above,
            "to" if closed else "up to": self.most,
            "to below" if closed else "below": self.below,
        }
        limits = [
            f"{word} {bound:,}" if isinstance(bound, int) else f"{word} {bound:g}"
            for word, bound in bounds.items()
            if bound is not None
        ]
        kind = "a whole number" if self.whole else "a number" if limits else "a finite number"
        up = " up" * (closed and len(limits) == 1)
        text = " ".join([kind, (" " if closed else " and ").join(limits)]).rstrip()
        return f"{text}{up}{', or None' * self.optional}"


@attrs.frozen
class OneOf(Limit):
    """One word of a fixed set.

    Attributes:
        words: Accepted words.
        optional: Whether None is accepted.
    """

    words: Collection[str]
    optional: bool = attrs.field(default=False, kw_only=True)

    def takes(self, value: Any) -> bool:
        """Return whether a value is one of the words."""
        return value in self.words if isinstance(value, str) else self.optional and value is None

    def hint(self, value: Any) -> str:
        """Return a suggestion of the most similar word."""
        return suggest(value, self.words) if isinstance(value, str) else ""

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}{', or None' * self.optional}"


@attrs.frozen
class OfType(Limit):
    """An instance of some types.

    Attributes:
        types: A type or types, as for ``isinstance``.
        words: Description of the types for the message, such as ``"a string"``.
    """

    types: type | tuple[type, ...]
    words: str

    def takes(self, value: Any) -> bool:
        """Return whether a value is of one of the types."""
        return isinstance(value, self.types)

    def __str__(self) -> str:
        return self.words


COUNT = Number(least=1, whole=True)
WHOLE = Number(least=0, whole=True)
SEED = Number(least=0, below=2**63, whole=True)
FLAG = OfType(bool, "True or False")
TEXT = OfType(str, "a string")
PATH = OfType((str, os.PathLike, type(None)), "a path, or None")
