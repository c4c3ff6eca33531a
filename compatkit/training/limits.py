"""Validators of settings, whose messages serve Python, recipes and studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import attrs

from compatkit.errors import UsageError

Check = Callable[[object, "attrs.Attribute[Any]", Any], None]


def number(
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
    endless: bool = False,
    optional: bool = False,
) -> Check:
    """Return a validator of attrs that takes numbers within bounds, finite ones.

    Args:
        least: Smallest number taken.
        above: A number that is itself too small.
        most: Largest number taken.
        below: A number that is itself too large.
        whole: Whether it must be an integer.
        endless: Whether infinity is taken too.
        optional: Whether None is taken too.

    Raises:
        UsageError: By the validator: names the setting, its bounds, and the value given.
    """
    said = [
        f"{words} {bound:g}"
        for words, bound in (("from", least), ("above", above), ("up to", most), ("below", below))
        if bound is not None
    ]
    wanted = f"a {'whole ' * whole}number {' and '.join(said)}" + " up" * (
        len(said) == 1 and least is not None
    )

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None and optional:
            return
        if not isinstance(value, Integral if whole else Real) or isinstance(value, bool) or not fits(value):
            raise UsageError(
                f"'{attribute.name}' must be {wanted}{' or None' * optional}; got {value!r:.60}."
            )

    def fits(value: Any) -> bool:
        return (
            (math.isfinite(value) or (endless and value == math.inf))
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
            and (below is None or value < below)
        )

    return check


def one_of(words: Sequence[str]) -> Check:
    """Return a validator of attrs that takes one of some words.

    Raises:
        UsageError: By the validator: names the setting, the words it takes, and the value given.
    """

    def check(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, str) or value not in words:
            raise UsageError(f"'{attribute.name}' must be one of {', '.join(words)}; got {value!r:.60}.")

    return check
