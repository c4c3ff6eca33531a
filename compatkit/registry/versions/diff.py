"""Compare two manifests: changes by level, and the smallest version step that they require."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from compatkit.contracts.contract import Contract
from compatkit.foundation.codec import LONGEST_KEY, unstructure
from compatkit.foundation.display import Shown
from compatkit.registry.names import Bump
from compatkit.registry.versions.partners import Location
from compatkit.registry.versions.rules import ORDER, UNREAD, Rules

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Manifest
    from compatkit.registry.versions.tensors import TensorChange

Level = Literal[
    "about",
    "kind",
    "weights",
    "blueprint",
    "structural",
    "data",
    "protocol",
    "statistical",
    "training",
    "parents",
    "extensions",
]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Levels in display order."""
POLICY: Location = ("blueprint", "kwargs", "normalisation")
"""Location of a recombination's batch-norm policy."""
MAX_VALUE = 60
"""Characters of a displayed value at most."""
MAX_PATH = 200
"""Characters of a displayed path at most; the middle is left out."""
GAP = " ... "
MAX_LISTED = 4
"""Changed numbers of a list to display at most; more are counted."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HEX = re.compile(r"([0-9a-f]{12})[0-9a-f]{28,}")


class Absent(Enum):
    """Marker of a missing value, which differs from ``null``."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@attrs.frozen
class Change:
    """Difference between two manifests.

    Attributes:
        level: Level of the contract, or part of the manifest.
        location: Keys and indices from the top of the manifest's JSON.
        before: JSON value, or ABSENT.
        after: JSON value, or ABSENT.
        bump: Smallest step that this change alone requires.
        reason: Reason for the step.
        name: Path to display instead of that of the stored key, or empty.
    """

    level: Level
    location: Location
    before: Any
    after: Any
    bump: Bump
    reason: str
    name: str = ""

    @property
    def path(self) -> str:
        """Path in the level, such as ``outputs[0].shape[1]``; long paths are shortened."""
        return path_text(self.location[_depth(self.location) :])

    @property
    def values(self) -> str:
        """Values before and after for display, with shortened digests."""
        if self.before is ABSENT:
            return f"added {value_text(self.after)}"
        if self.after is ABSENT:
            return f"removed {value_text(self.before)}"
        if isinstance(self.before, float) and isinstance(self.after, float):
            left, right = f"{self.before:.6g}", f"{self.after:.6g}"
            if left != right:
                return f"{left} -> {right}"
        return f"{value_text(self.before)} -> {value_text(self.after)}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; ``before`` or ``after`` is omitted if absent."""
        sides = {"before": self.before, "after": self.after}
        return {
            "level": self.level,
            "path": self.path,
            "pointer": "".join(
                f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in self.location
            ),
            **{name: value for name, value in sides.items() if value is not ABSENT},
            "bump": self.bump,
            "reason": self.reason,
        }


@attrs.frozen(repr=False)
class Difference(Shown):
    """All differences between two manifests.

    Attributes:
        changes: Changes in the order of the levels; empty for equal manifests.
        tensors: Differences of the weights by tensor; None if not compared.
    """

    changes: tuple[Change, ...] = ()
    tensors: tuple[TensorChange, ...] | None = None

    @property
    def bump(self) -> Bump:
        """Smallest step from the old to the new version: the largest step of the changes."""
        return ORDER[max((ORDER.index(change.bump) for change in self.changes), default=0)]

    @property
    def equal_shapes(self) -> bool:
        """Whether the weights are new and the ports equal; such components look compatible but may not be."""
        new_weights = any(change.location == ("payload", "tensors") for change in self.changes)
        return new_weights and not any(change.level == "structural" for change in self.changes)

    def by_level(self) -> Mapping[Level, Mapping[tuple[Bump, str], list[tuple[str, str]]]]:
        """Return paths and values by level, then by step and reason, the largest step first."""
        levels: dict[Level, dict[tuple[Bump, str], list[tuple[str, str]]]] = {}
        for level in LEVELS:
            changes = [change for change in self.changes if change.level == level]
            changes.sort(key=lambda change: -ORDER.index(change.bump))
            grouped: dict[tuple[Bump, str], list[Change]] = {}
            for change in changes:
                grouped.setdefault((change.bump, change.reason), []).append(change)
            if grouped:
                levels[level] = {key: list(_condensed(group)) for key, group in grouped.items()}
        return levels

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the step, all changes, and the tensors if compared."""
        return {
            "bump": self.bump,
            "equal_shapes": self.equal_shapes,
            "changes": [change.to_json() for change in self.changes],
            "tensors": None if self.tensors is None else [change.to_json() for change in self.tensors],
        }

    def __str__(self) -> str:
        if not self.changes:
            return "no difference"
        lines = [f"least step: {self.bump}"]
        for level, reasons in self.by_level().items():
            lines.append(level)
            for (bump, reason), rows in reasons.items():
                lines.append(f"  {bump}: {reason}")
                lines += [f"    {path}: {values}" for path, values in rows]
        return "\n".join([*lines, *(f"  {tensor}" for tensor in self.tensors or ())])


def diff(old: Manifest, new: Manifest, *, measured: bool = False, read_only: bool = False) -> Difference:
    """Compare two manifests; the result is empty if and only if their canonical bytes are equal.

    Args:
        old: Manifest of the old version.
        new: Manifest of the new version.
        measured: Whether the measurement stated for the new weights was verified.
        read_only: Whether to leave out the sections that no check reads, which require a PATCH at most.

    Returns:
        Changes with the step that each requires.

    Raises:
        FormatError: A manifest contains a value that canonical JSON cannot express.
    """
    rules = Rules(old, new, measured)
    changes: list[Change] = []
    for location, left, right in _differences(old, new, (), UNREAD if read_only else frozenset()):
        level = _level(location)
        name = "kwargs.bn_policy" if new.kind == "recombination" and location == POLICY else ""
        changes.append(Change(level, location, left, right, *rules.of(level, location), name))
    return Difference(tuple(sorted(changes, key=lambda change: LEVELS.index(change.level))))


def differing_paths(value: Any, other: Any, location: Location = ()) -> list[str]:
    """Return the paths at which two values differ: ``["contract.data.size[0]"]``.

    Args:
        value: Attrs instance, or JSON value.
        other: Value of the same type.
        location: Location of both values in a larger one.

    Raises:
        FormatError: Canonical JSON cannot express a value.
    """
    return [path_text(path) for path, _, _ in _leaves(unstructure(value), unstructure(other), location)]


def value_text(value: Any) -> str:
    """Return a JSON value for display, with shortened digests and texts."""
    text = _HEX.sub(r"\1", json.dumps(value, ensure_ascii=False, sort_keys=True))
    text = text[1:-1] if isinstance(value, str) and ":" in text and " " not in text else text
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 4]} ..."


def path_text(location: Sequence[str | int]) -> str:
    """Return a path for display, such as ``outputs[0].shape[1]`` or ``tags["a.b"]``; long paths are shortened."""
    text = ""
    for step in location:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        key = step if len(step) <= LONGEST_KEY else f"{step[:LONGEST_KEY]}..."
        if _PLAIN_KEY.fullmatch(key):
            text += f".{key}" if text else key
        else:
            text += f"[{json.dumps(key, ensure_ascii=False)}]"
    half = (MAX_PATH - len(GAP)) // 2
    return text if len(text) <= MAX_PATH else text[:half] + GAP + text[-half:]


def _depth(location: Location) -> int:
    """Return the number of leading keys of the level."""
    if location[0] in ("kind", "schema") or location[:2] == ("contract", "adapters"):
        return 0 if location[0] != "contract" else 1
    return 2 if location[0] == "contract" else 1


def _level(location: Location) -> Level:
    top = location[1] if location[0] == "contract" else location[0]
    renamed: dict[str | int, Level] = {"payload": "weights", "schema": "kind", "adapters": "blueprint"}
    return renamed[top] if top in renamed else next(level for level in LEVELS if level == top)


def _differences(
    old: Manifest | Contract, new: Manifest | Contract, location: Location, left_out: Set[str]
) -> Iterator[tuple[Location, Any, Any]]:
    """Yield the deepest locations at which two manifests differ, without sections that are the same object."""
    names, values = _fields(type(old))
    for name, left, right in zip(names, values(old), values(new), strict=True):
        if left is not right and name not in left_out:
            if isinstance(left, Contract):
                yield from _differences(left, right, (*location, name), left_out)
            else:
                yield from _leaves(unstructure(left), unstructure(right), (*location, name))


@cache
def _fields(kind: type[Manifest] | type[Contract]) -> tuple[list[str], attrgetter[tuple[Any, ...]]]:
    """Return the sorted names of all fields, and a getter of their values."""
    names = sorted(attrs.fields_dict(kind))
    return names, attrgetter(*names)


def _leaves(old: Any, new: Any, location: Location) -> Iterator[tuple[Location, Any, Any]]:
    """Yield the deepest locations at which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _leaves(old.get(key, ABSENT), new.get(key, ABSENT), (*location, key))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            left, right = (value[index] if index < len(value) else ABSENT for value in (old, new))
            yield from _leaves(left, right, (*location, index))
    elif old is ABSENT or new is ABSENT or repr(old) != repr(new):  # 1, 1.0 and true differ
        yield location, old, new


def _condensed(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """Yield paths and values; for a long list of numbers the number of changes."""
    lists: dict[Location, list[Change]] = {}
    for change in changes:
        number = isinstance(change.location[-1], int) and not isinstance(change.before, (dict, list, str))
        lists.setdefault(change.location[:-1] if number else change.location, []).append(change)
    for group in lists.values():
        if len(group) <= MAX_LISTED:
            yield from ((change.name or change.path, change.values) for change in group)
            continue
        location = group[0].location
        yield path_text(location[_depth(location) : -1]), f"{len(group)} values changed"
