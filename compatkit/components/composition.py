"""Read and write the parts of a recombination in its manifest, without tensors."""

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
"""Relations of a recombination to its parents."""


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
    """Provenance of an adapter that is not a published component."""

    parents: tuple[Parent, ...] = ()
    training: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class _Arguments:
    """``kwargs`` of a recombination's blueprint."""

    bn_policy: str = attrs.field(metadata={"key": "normalisation"})
    functions: tuple[str, ...]
    pinned: tuple[int, ...]


@attrs.frozen
class Composition:
    """Parts of a recombination.

    Attributes:
        policy: Batch-norm policy.
        pins: Parts that are components, in forward order.
        pinned: Indices of the adapters that are components.
        origins: Provenance of each adapter; None for components.
    """

    policy: str
    pins: tuple[Pin, ...]
    pinned: tuple[int, ...]
    origins: tuple[AdapterOrigin | None, ...]

    @classmethod
    def of(cls, recombination: Recombination) -> Composition:
        """Return the composition of a recombined network."""
        extractor, head = recombination.sources
        pins = [Pin(EXTRACTOR, extractor.digest, extractor.function)]
        pinned: list[int] = []
        origins: list[AdapterOrigin | None] = []
        for index, adapter in enumerate(recombination.inserted):
            if adapter.digest is None:
                origins.append(AdapterOrigin(adapter.parents, adapter.training))
                continue
            pins.append(Pin(ADAPTER, adapter.digest, adapter.function))
            pinned.append(index)
            origins.append(None)
        pins.append(Pin(HEAD, head.digest, head.function))
        return cls(recombination.bn_policy, tuple(pins), tuple(pinned), tuple(origins))

    @classmethod
    def read(cls, manifest: Manifest, owner: str) -> Composition:
        """Read the composition from a manifest.

        Args:
            manifest: Manifest of kind ``recombination``.
            owner: Reference of the recombination, for messages.

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
        policy, functions, pinned = arguments.bn_policy, arguments.functions, arguments.pinned
        _expect(is_policy(policy), owner, f"a policy of {', '.join(POLICIES)}", policy)
        _expect(relations == expected, owner, f"the parents {', '.join(expected)}", relations)
        _expect(len(functions) == len(expected), owner, f"{len(expected)} functions", len(functions))
        valid = list(pinned) == sorted(set(pinned)) and all(0 <= index < count for index in pinned)
        _expect(valid, owner, f"increasing indices of {count} adapters", pinned)
        pins = tuple(
            Pin(parent.relation, parent.component, function)
            for parent, function in zip(manifest.parents, functions, strict=True)
        )
        return cls(policy, pins, pinned, _origins(manifest, pinned, owner))

    def blueprint(self, extractor: Blueprint, head: Blueprint) -> Blueprint:
        """Return the blueprint of the recombination from those of extractor and head.

        Args:
            extractor: Blueprint of the extractor.
            head: Blueprint of the head.
        """
        functions = tuple(pin.function for pin in self.pins)
        return Blueprint(
            BUILDER,
            f"compatkit {version_of('compatkit')}",
            "+".join(dict.fromkeys((extractor.model, head.model))),
            unstructure(_Arguments(self.policy, functions, self.pinned)),
            "+".join(dict.fromkeys((extractor.cut, head.cut))),
            "recombination",
            "whole",
            extractor.traced_size,
            extractor.cut_outputs,
        )


def _origins(manifest: Manifest, pinned: Sequence[int], owner: str) -> tuple[AdapterOrigin | None, ...]:
    count = len(manifest.contract.adapters)
    listed = manifest.training.get("adapters")
    if listed is None:
        return tuple(None if index in pinned else AdapterOrigin() for index in range(count))
    path = f"{owner}.training.adapters"
    origins: Sequence[AdapterOrigin | None] = structure(
        tuple[AdapterOrigin | None, ...], unstructure(listed), path
    )
    valid = len(origins) == count and all(
        (origin is None) == (index in pinned) for index, origin in enumerate(origins)
    )
    _expect(valid, path, f"one entry for each of {count} adapters, null for a component", len(origins))
    return tuple(origins)


def _expect(valid: bool, path: str, expected: str, value: object) -> None:
    if not valid:
        raise FormatError(f"{path}: expected {expected}, got {value!r:.100}.", subject=path)
