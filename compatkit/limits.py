"""Limits of settings, numbers and words; their messages serve Python, recipes, studies and plugins."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from numbers import Real
from typing import Any

import attrs

from compatkit.errors import CompatkitError, UsageError


@attrs.frozen(kw_only=True)
class Number:
    """Finite numbers within bounds; a validator of attrs, and a check of arguments.

    As a validator it replaces numbers of numpy by Python's, which JSON can hold. True and False are no numbers.

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
        """Validate an attribute.

        Raises:
            UsageError: Names the setting, its bounds, and the value given; ``subject`` is the setting's name.
        """
        if isinstance(value, Real) and (item := getattr(value, "item", None)):
            value = item()
            object.__setattr__(instance, attribute.name, value)
        if not self.takes(value):
            raise _refusal(UsageError, "", attribute.name, str(self), value)

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
            if not self.takes(value):
                raise _refusal(error, f"{owner}: ", name, str(self), value)

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


COUNT = Number(least=1, whole=True)
WHOLE = Number(least=0, whole=True)


def one_of(
    words: Collection[str], *, optional: bool = False
) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    """Return a validator of attrs that takes one of some words.

    Args:
        words: What is taken.
        optional: Whether None is taken too.

    Raises:
        UsageError: By the validator: names the setting, the words it takes, and the value given; ``subject`` is the
            setting's name.
    """

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        taken = value in words if isinstance(value, str) else optional and value is None
        if not taken:
            wanted = f"one of {', '.join(words)}{' or None' * optional}"
            raise _refusal(UsageError, "", attribute.name, wanted, value)

    return check


def _refusal(
    error: type[CompatkitError], owner: str, name: str, wanted: str, value: object
) -> CompatkitError:
    return error(f"{owner}'{name}' must be {wanted}; got {value!r:.60}.", subject=name)
