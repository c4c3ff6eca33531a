"""Write a component, or a recombination with all of its parts, as one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor, nn

from compatkit.components.exports.document import Description, PartRecord, to_text
from compatkit.components.exports.naming import prefixes
from compatkit.components.proofs import probe_shapes
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.contracts.manifest import Manifest
from compatkit.errors import UsageError
from compatkit.evaluation.assembly import Assembly
from compatkit.evaluation.recombination import Recombination
from compatkit.registry import disk as durable
from compatkit.registry.weights.tensorfile import pieces, state_digest


@attrs.frozen
class Written:
    """An exported file.

    Attributes:
        path: Where it is.
        bytes: Its size.
        description: What it says of the network.
    """

    path: Path
    bytes: int
    description: Description

    def __repr__(self) -> str:
        whose = self.description.reference or self.description.about.title
        return f"Written({str(self.path)!r}: {self.bytes:,} bytes, {self.description.kind} {whose!r})"


def write(
    path: str | os.PathLike[str],
    module: nn.Module,
    manifest: Manifest,
    *,
    reference: str = "",
    digest: str | None = None,
    names: str = "auto",
) -> Written:
    """Write a loaded component to a file, in place of what is there.

    Args:
        path: Of the file; its folder exists.
        module: As it was loaded or put together, in eval mode.
        manifest: Of the component, with its probe.
        reference: Where it was loaded from.
        digest: Of the manifest, where it was published.
        names: See ``naming.prefixes``.

    Raises:
        UsageError: The path is a folder, or ``names`` is not possible.
        FormatError: A tensor cannot be stored.
        EnvironmentFailure: Disk full, no right to write; what was there before is untouched.
    """
    place = Path(path)
    if place.is_dir():
        raise UsageError(f"{place} is a folder; name a file in it, such as {place / 'network.safetensors'}.")
    modules = list(_modules(module, manifest, digest))
    whole = module if isinstance(module, Assembly) else Assembly(None, module, contract=manifest.contract)
    shapes = probe_shapes(manifest.contract.structural, manifest.blueprint)
    before, kind = prefixes([(blueprint, one) for blueprint, one, _ in modules], whole, shapes, names)
    state: dict[str, Tensor] = {}
    parts: list[PartRecord] = []
    for prefix, (blueprint, one, component) in zip(before, modules, strict=True):
        own = one.state_dict()
        state |= {prefix + name: value for name, value in own.items()}
        parts.append(PartRecord(blueprint, tuple(sorted(own)), prefix, component))
    description = Description(
        kind=manifest.kind,
        blueprint=manifest.blueprint,
        contract=_alone(manifest.contract),
        parts=tuple(parts),
        tensors=state_digest(state),
        names=kind,
        about=manifest.about,
        training=_values(manifest.training),
        component=digest,
        reference=reference,
    )
    content = pieces(state, to_text(description))
    durable.replace_file(place, content)
    return Written(place, sum(len(one) for one in content), description)


def _modules(
    module: nn.Module, manifest: Manifest, digest: str | None
) -> Iterator[tuple[Blueprint, nn.Module, str | None]]:
    """Yield blueprint, module and manifest digest of every part, in the order in which images pass them."""
    if not isinstance(module, Recombination):
        yield manifest.blueprint, module, digest
        return
    left, right = module.sources
    yield left.blueprint, module.extractor, left.digest
    for one in module.inserted:
        yield one.blueprint, one.module, one.digest
    yield right.blueprint, module.head, right.digest


def _alone(contract: Contract) -> Contract:
    """Return a contract without what only a registry keeps: the statistics of each channel."""
    statistical = contract.statistical
    features = statistical.features and tuple(
        attrs.evolve(one, per_channel=None) for one in statistical.features
    )
    return attrs.evolve(contract, statistical=attrs.evolve(statistical, features=features))


def _values(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a run, without what is kept beside it in a registry."""
    return {
        key: value for key, value in training.items() if not (isinstance(value, Mapping) and "blob" in value)
    }
