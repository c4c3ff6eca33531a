"""Limits of settings, numbers and words; their messages serve Python, recipes, studies and plugins."""

from __future__ import annotations

import math
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
        """Return what else to say of a value that is not taken."""
        return ""

    def _demand(self, owner: str, error: type[CompatkitError], name: str, value: Any) -> None:
        if not self.takes(value):
            told = f"{owner}'{name}' must be {self}; got {value!r:.60}.{self.hint(value)}"
            raise error(told, subject=name)


@attrs.frozen(kw_only=True)
class Number(Limit):
    """Finite numbers within bounds; True and False are no numbers.

    As a validator it replaces numbers of numpy by Python's, which JSON can hold.

    Attributes:
        least: Smallest number taken.
        above: A number that is itself too small.
        most: Largest number taken.
        below: A number that is itself too large.
        whole: Whether it must be an integer.
        endless: Whether infinity is taken too.
        optional: Whether None is taken too.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    whole: bool = False
    endless: bool = False
    optional: bool = False

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Validate an attribute; a number of numpy is replaced by Python's."""
        if isinstance(value, Real) and (item := getattr(value, "item", None)):
            value = item()
            object.__setattr__(instance, attribute.name, value)
        super().__call__(instance, attribute, value)

    def takes(self, value: Any) -> bool:
        """Return whether a value is a number within the bounds."""
        if value is None:
            return self.optional
        if type(value) is not int and (self.whole or not isinstance(value, float)):
            return False
        return (
            (type(value) is int or math.isfinite(value) or (self.endless and value == math.inf))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = {"from": self.least, "above": self.above, "up to": self.most, "below": self.below}
        said = [f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None]
        kind = "a whole number" if self.whole else "a number" if said else "a finite number"
        up = " up" * (len(said) == 1 and self.least is not None)
        return f"{' '.join([kind, ' and '.join(said)]).rstrip()}{up}{' or None' * self.optional}"


@attrs.frozen
class OneOf(Limit):
    """One of some words.

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
        return suggest(value, self.words)

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}{' or None' * self.optional}"


COUNT = Number(least=1, whole=True)
WHOLE = Number(least=0, whole=True)
