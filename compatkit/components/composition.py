"""What a recombination's manifest says of its parts: read strictly, written canonically; no tensor is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import attrs

from compatkit.contracts.batchnorm import POLICIES, is_policy
from compatkit.contracts.codec import structure, unstructure
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.manifest import Manifest, Parent
from compatkit.errors import FormatError

BUILDER = "recombination"
EXTRACTOR, ADAPTER, HEAD = "extractor", "adapter", "head"
"""Relations of a recombination to its parts."""


@attrs.frozen
class Pin:
    """A part by its digest.

    Attributes:
        relation: ``"extractor"``, ``"adapter"`` or ``"head"``.
        digest: Manifest digest, ``sha256:...``.
        function: Function digest, ``value:sha256:...``.
    """

    relation: str
    digest: str
    function: str


@attrs.frozen
class Facts:
    """Where an adapter came from that is no component of its own."""

    parents: tuple[Parent, ...] = ()
    training: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class _Arguments:
    """The ``kwargs`` of a recombination's blueprint."""

    normalisation: str
    functions: tuple[str, ...]
    pinned: tuple[int, ...]


@attrs.frozen
class Composition:
    """What a recombination is made of.

    Attributes:
        policy: What is done with batch normalisation.
        extractor: The first part.
        head: The last part.
        adapters: Those that are components, by their place between the two.
        facts: Of the other adapters, one for each place; None for those that are components.
    """

    policy: str
    extractor: Pin
    head: Pin
    adapters: Mapping[int, Pin]
    facts: tuple[Facts | None, ...]

    @property
    def pins(self) -> tuple[Pin, ...]:
        """All parts that are components, in the order in which images pass them."""
        return (self.extractor, *(self.adapters[place] for place in sorted(self.adapters)), self.head)

    @property
    def parents(self) -> tuple[Parent, ...]:
        """The parts as the manifest lists them."""
        return tuple(Parent(one.relation, one.digest) for one in self.pins)

    @property
    def training(self) -> dict[str, Any]:
        """What the manifest records of adapters that are no components; nothing where there are none."""
        if not any(self.facts):
            return {}
        return {"adapters": [None if one is None else unstructure(one) for one in self.facts]}

    def blueprint(self, extractor: Blueprint, head: Blueprint) -> Blueprint:
        """Return the blueprint of the whole from those of its two networks."""
        models = dict.fromkeys((extractor.model, head.model))
        points = dict.fromkeys((extractor.split, head.split))
        arguments = _Arguments(
            self.policy, tuple(one.function for one in self.pins), tuple(sorted(self.adapters))
        )
        return Blueprint(
            BUILDER,
            f"compatkit {version('compatkit')}",
            "+".join(models),
            unstructure(arguments),
            "+".join(points),
            "recombination",
            "whole",
            extractor.traced_size,
            extractor.cut_outputs,
        )


def composition(manifest: Manifest, whose: str) -> Composition:
    """Read what a recombination is made of.

    Args:
        manifest: Of kind ``recombination``.
        whose: Its reference, for messages.

    Raises:
        FormatError: Parts are missing, double, in another order, or not described as they must be.
    """
    blueprint, count = manifest.blueprint, len(manifest.contract.adapters)
    if manifest.kind != "recombination" or blueprint.side != "recombination" or blueprint.builder != BUILDER:
        raise FormatError(
            f"{whose}: expected kind, side and builder 'recombination', got {manifest.kind!r}, {blueprint.side!r} and "
            f"{blueprint.builder!r:.80}.",
            subject=whose,
        )
    given: _Arguments = structure(_Arguments, unstructure(blueprint.kwargs), f"{whose}.blueprint.kwargs")
    expected = (EXTRACTOR, *([ADAPTER] * len(given.pinned)), HEAD)
    relations = tuple(one.relation for one in manifest.parents)
    _expect(is_policy(given.normalisation), whose, f"a policy of {', '.join(POLICIES)}", given.normalisation)
    _expect(relations == expected, whose, f"the parents {', '.join(expected)}", relations)
    _expect(len(given.functions) == len(expected), whose, f"{len(expected)} functions", len(given.functions))
    rising = list(given.pinned) == sorted(set(given.pinned))
    inside = all(0 <= place < count for place in given.pinned)
    _expect(rising and inside, whose, f"rising places of {count} adapters", given.pinned)
    pins = [
        Pin(parent.relation, parent.component, function)
        for parent, function in zip(manifest.parents, given.functions, strict=True)
    ]
    adapters = dict(zip(given.pinned, pins[1:-1], strict=True))
    return Composition(given.normalisation, pins[0], pins[-1], adapters, _facts(manifest, adapters, whose))


def _facts(manifest: Manifest, adapters: Mapping[int, Pin], whose: str) -> tuple[Facts | None, ...]:
    places = range(len(manifest.contract.adapters))
    listed = manifest.training.get("adapters")
    if listed is None:
        return tuple(None if place in adapters else Facts() for place in places)
    path = f"{whose}.training.adapters"
    found: Sequence[Facts | None] = structure(tuple[Facts | None, ...], unstructure(listed), path)
    fits = len(found) == len(places) and all(
        (one is None) == (place in adapters) for place, one in enumerate(found)
    )
    _expect(fits, path, f"one entry for each of {len(places)} adapters, null for a component", len(found))
    return tuple(found)


def _expect(fits: bool, path: str, expected: str, value: object) -> None:
    if not fits:
        raise FormatError(f"{path}: expected {expected}, got {value!r:.100}.", subject=path)
