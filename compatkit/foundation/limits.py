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
    """What a value may be: a validator of attrs, and a check of arguments."""

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Validate an attribute.

        Raises:
            UsageError: Names the setting, what it takes, and the value given; ``subject`` is the setting's name.
        """
        self._demand("", UsageError, attribute.name, value)

    def check(self, owner: str, error: type[CompatkitError] = UsageError, /, **given: Any) -> None:
        """Check arguments of a function.

        Args:
            owner: Of the arguments, for the message.
            error: What to raise.
            given: Values by name.

        Raises:
            CompatkitError: ``error``, with the words of the validator.
        """
        for name, value in given.items():
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
    """Return a number of numpy as Python's, anything else as it is."""
    item = getattr(value, "item", None) if isinstance(value, Real) else None
    return value if item is None else item()


@attrs.frozen(kw_only=True)
class Number(Limit):
    """Finite numbers within bounds; True and False are no numbers.

    As a validator it replaces numbers of numpy by Python's, which JSON can hold, when an object is made.

    Attributes:
        least: Lower bound.
        above: Exclusive lower bound.
        most: Upper bound.
        below: Exclusive upper bound.
        whole: Whether it must be an integer.
        infinite: Whether infinity is taken too.
        optional: Whether None is taken too.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    whole: bool = False
    infinite: bool = False
    optional: bool = False

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Validate an attribute; a number of numpy is replaced by Python's."""
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
        # a float, or an integer that a float can hold
        finite = self.whole or abs(value) <= sys.float_info.max
        return (
            (finite or (self.infinite and value == math.inf))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def hint(self, value: Any) -> str:
        """Return that a number must be Python's, of one of numpy."""
        foreign = isinstance(value, Real) and not isinstance(value, (int, float))
        return f" Give Python's number: .item() of this {type(value).__name__}." * foreign

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
        words: What is taken.
        optional: Whether None is taken too.
    """

    words: Collection[str]
    optional: bool = attrs.field(default=False, kw_only=True)

    def takes(self, value: Any) -> bool:
        """Return whether a value is one of the words."""
        return value in self.words if isinstance(value, str) else self.optional and value is None

    def hint(self, value: Any) -> str:
        """Return the words that a value is close to."""
        return suggest(value, self.words) if isinstance(value, str) else ""

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}{', or None' * self.optional}"


@attrs.frozen
class OfType(Limit):
    """A value of some types.

    Attributes:
        types: What ``isinstance`` takes.
        words: Names them in the message.
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
