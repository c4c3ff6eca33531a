"""The parts of a recombination in its manifest: read strictly and written canonically, without tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version as version_of
from typing import Any

import attrs

from compatkit.contracts.batchnorm import POLICIES, is_policy
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.manifest import Manifest, Parent
from compatkit.errors import FormatError
from compatkit.evaluation.recombination import Recombination
from compatkit.foundation.codec import structure, unstructure

BUILDER = "recombination"
EXTRACTOR, ADAPTER, HEAD = "extractor", "adapter", "head"
"""Relations of a recombination to its parts."""


@attrs.frozen
class Pin:
    """A part pinned by digest.

    Attributes:
        relation: ``"extractor"``, ``"adapter"`` or ``"head"``.
        digest: Manifest digest, ``sha256:...``.
        function: Function digest, ``value:sha256:...``.
    """

    relation: str
    digest: str
    function: str


@attrs.frozen
class AdapterOrigin:
    """Provenance of an adapter that is not a component."""

    parents: tuple[Parent, ...] = ()
    training: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class _Arguments:
    """The ``kwargs`` of a recombination's blueprint."""

    bn_policy: str = attrs.field(metadata={"key": "normalisation"})
    functions: tuple[str, ...]
    pinned: tuple[int, ...]


@attrs.frozen
class Composition:
    """The parts of a recombination.

    Attributes:
        policy: Batch-norm policy.
        pins: Parts that are components, in forward order.
        places: Indices of the adapters that are components.
        origins: Provenance by adapter; None for components.
    """

    policy: str
    pins: tuple[Pin, ...]
    places: tuple[int, ...]
    origins: tuple[AdapterOrigin | None, ...]

    @classmethod
    def of(cls, recombination: Recombination) -> Composition:
        """Return the composition of a network."""
        left, right = recombination.sources
        adapters = recombination.inserted
        pins = [
            Pin(ADAPTER, adapter.digest, adapter.function)
            for adapter in adapters
            if adapter.digest is not None
        ]
        return cls(
            recombination.bn_policy,
            (Pin(EXTRACTOR, left.digest, left.function), *pins, Pin(HEAD, right.digest, right.function)),
            tuple(index for index, adapter in enumerate(adapters) if adapter.digest is not None),
            tuple(
                AdapterOrigin(adapter.parents, adapter.training) if adapter.digest is None else None
                for adapter in adapters
            ),
        )

    @classmethod
    def read(cls, manifest: Manifest, owner: str) -> Composition:
        """Read the composition in a manifest.

        Args:
            manifest: Manifest of kind ``recombination``.
            owner: Its reference, for messages.

        Raises:
            FormatError: Parts are missing, duplicated, out of order or malformed.
        """
        blueprint, count = manifest.blueprint, len(manifest.contract.adapters)
        if blueprint.side != "recombination" or blueprint.builder != BUILDER:
            raise FormatError(
                f"{owner}: expected side and builder 'recombination', got {blueprint.side!r} and "
                f"{blueprint.builder!r:.80}.",
                subject=owner,
            )
        arguments: _Arguments = structure(
            _Arguments, unstructure(blueprint.kwargs), f"{owner}.blueprint.kwargs"
        )
        expected = (EXTRACTOR, *([ADAPTER] * len(arguments.pinned)), HEAD)
        relations = tuple(parent.relation for parent in manifest.parents)
        known = is_policy(arguments.bn_policy)
        _expect(known, owner, f"a policy of {', '.join(POLICIES)}", arguments.bn_policy)
        _expect(relations == expected, owner, f"the parents {', '.join(expected)}", relations)
        fits = len(arguments.functions) == len(expected)
        _expect(fits, owner, f"{len(expected)} functions", len(arguments.functions))
        rising = list(arguments.pinned) == sorted(set(arguments.pinned))
        inside = all(0 <= place < count for place in arguments.pinned)
        _expect(rising and inside, owner, f"rising places of {count} adapters", arguments.pinned)
        pins = tuple(
            Pin(parent.relation, parent.component, function)
            for parent, function in zip(manifest.parents, arguments.functions, strict=True)
        )
        return cls(arguments.bn_policy, pins, arguments.pinned, _origins(manifest, arguments.pinned, owner))

    def blueprint(self, extractor: Blueprint, head: Blueprint) -> Blueprint:
        """Return the blueprint of the whole from those of extractor and head.

        Args:
            extractor: Its blueprint.
            head: Its blueprint.
        """
        functions = tuple(pin.function for pin in self.pins)
        return Blueprint(
            BUILDER,
            f"compatkit {version_of('compatkit')}",
            "+".join(dict.fromkeys((extractor.model, head.model))),
            unstructure(_Arguments(self.policy, functions, self.places)),
            "+".join(dict.fromkeys((extractor.cut, head.cut))),
            "recombination",
            "whole",
            extractor.traced_size,
            extractor.cut_outputs,
        )


def _origins(manifest: Manifest, pinned: Sequence[int], owner: str) -> tuple[AdapterOrigin | None, ...]:
    places = range(len(manifest.contract.adapters))
    listed = manifest.training.get("adapters")
    if listed is None:
        return tuple(None if place in pinned else AdapterOrigin() for place in places)
    path = f"{owner}.training.adapters"
    origins: Sequence[AdapterOrigin | None] = structure(
        tuple[AdapterOrigin | None, ...], unstructure(listed), path
    )
    fits = len(origins) == len(places) and all(
        (origin is None) == (place in pinned) for place, origin in enumerate(origins)
    )
    _expect(fits, path, f"one entry for each of {len(places)} adapters, null for a component", len(origins))
    return tuple(origins)


def _expect(fits: bool, path: str, expected: str, value: object) -> None:
    if not fits:
        raise FormatError(f"{path}: expected {expected}, got {value!r:.100}.", subject=path)
