"""Write a component, or a recombination with all its parts, as one file.

In a safetensors file the tensors get the names of one whole network where the parts make up one. Other formats are
written by plugins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import attrs
from torch import Tensor, nn

from compatkit.adapters.builders import whole_of
from compatkit.adapters.cutting.signals import port_signal
from compatkit.adapters.initialization import seeded, without_draws
from compatkit.components.exports.document import Description, PartRecord, to_text
from compatkit.components.probes import probe_shapes
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError, UsageError
from compatkit.evaluation.recombination import Recombination
from compatkit.foundation.addresses import local
from compatkit.foundation.limits import OneOf
from compatkit.plugins.discovery import find
from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.tensorfile import pieces, state_digest

Names = Literal["auto", "whole", "parts"]
NAMES: tuple[Names, ...] = ("auto", "whole", "parts")
SAFETENSORS = "safetensors"
"""The format that ``load_exported`` reads; others are those of plugins."""


@attrs.frozen
class ExportedFile:
    """An exported file.

    Attributes:
        path: Its path.
        bytes: Its size.
        description: Description of the network; tensor names and their digest are those of a safetensors file.
    """

    path: Path
    bytes: int
    description: Description

    def __repr__(self) -> str:
        label = self.description.reference or self.description.about.title
        return f"ExportedFile({str(self.path)!r}: {self.bytes:,} bytes, {self.description.kind} {label!r})"


def write(
    path: str | os.PathLike[str],
    module: nn.Module,
    manifest: Manifest,
    *,
    reference: str = "",
    digest: str | None = None,
    names: str = "auto",
) -> ExportedFile:
    """Write a loaded component to a file, replacing it if it exists.

    Args:
        path: Path of the file, in an existing folder.
        module: The module as loaded or recombined, in eval mode.
        manifest: Manifest of the component, with its probe.
        reference: Reference it was loaded from.
        digest: Digest of the manifest if published.
        names: See ``prefixes``.

    Raises:
        UsageError: The path is a folder, or ``names`` is not possible.
        FormatError: A tensor cannot be stored.
        EnvironmentFailure: Disk full, or no write permission; an existing file is left unchanged.
    """
    file = _file(path, "safetensors")
    state, description = _described(module, manifest, reference, digest, names)
    content = pieces(state, to_text(description))
    durable.replace_file(file, content)
    return ExportedFile(file, sum(map(len, content)), description)


def write_as(
    format: str,
    path: str | os.PathLike[str],
    module: nn.Module,
    manifest: Manifest,
    settings: Mapping[str, Any] | None = None,
    *,
    reference: str = "",
    digest: str | None = None,
) -> ExportedFile:
    """Write a loaded component in the format of a plugin, replacing the file if it exists.

    Args:
        format: Name of the exporter, such as ``"onnx"``.
        path: Path of the file, in an existing folder.
        module: The module as loaded or recombined, in eval mode.
        manifest: Manifest of the component.
        settings: Keyword arguments for the exporter.
        reference: Reference it was loaded from.
        digest: Digest of the manifest if published.

    Raises:
        UsageError: The path is a folder, or there is no such exporter.
        PluginError: The exporter does not take these settings, or fails.
        EnvironmentFailure: Disk full, or no write permission; an existing file is left unchanged.
    """
    offer, file, settings = find("exporters", format), _file(path, format), settings or {}
    _, description = _described(module, manifest, reference, digest, "parts")
    shapes = probe_shapes(manifest.contract.structural, manifest.blueprint)
    dtypes = [port.dtype for port in manifest.contract.structural.inputs]
    tensors = tuple(
        port_signal(shape, i, dtype) for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    )
    inputs = tensors if len(tensors) == 1 else (tensors,)
    with environment("write", file), TemporaryDirectory(prefix=".export-", dir=file.parent) as folder:
        draft = Path(folder, file.name)
        with offer.called(
            settings, "exporting", f"exporting to {file} failed", "Leave global state as it is."
        ):
            offer.factory(draft, module, inputs, to_text(description), **settings)
        if not draft.is_file():
            raise offer.owner.error(f"it wrote no file {draft.name}. Write to the path that is passed first.")
        written = ExportedFile(file, draft.stat().st_size, description)
        os.replace(draft, file)
    return written


def _file(path: str | os.PathLike[str], suffix: str) -> Path:
    file = Path(local(path, "an exported file"))
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name a file in it, such as {file / f'network.{suffix}'}.")
    return file


def _described(
    module: nn.Module, manifest: Manifest, reference: str, digest: str | None, names: str
) -> tuple[dict[str, Tensor], Description]:
    """Return all tensors by their name in a file, and the description of the network."""
    modules = list(_modules(module, manifest, digest))
    before, kind = prefixes([(blueprint, part) for blueprint, part, _ in modules], names)
    state: dict[str, Tensor] = {}
    parts: list[PartRecord] = []
    for prefix, (blueprint, part, component) in zip(before, modules, strict=True):
        own = part.state_dict()
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
    return state, description


def _modules(
    module: nn.Module, manifest: Manifest, digest: str | None
) -> Iterator[tuple[Blueprint, nn.Module, str | None]]:
    """Yield blueprint, module and manifest digest of every part, in forward order."""
    if not isinstance(module, Recombination):
        yield manifest.blueprint, module, digest
        return
    left, right = module.sources
    yield left.manifest.blueprint, module.extractor, left.digest
    for adapter in module.inserted:
        yield adapter.blueprint, adapter.module, adapter.digest
    yield right.manifest.blueprint, module.head, right.digest


def _alone(contract: Contract) -> Contract:
    """Return a contract without blobs that exist only in a registry: the channel statistics."""
    statistical = contract.statistical
    features = statistical.features and tuple(
        attrs.evolve(moments, per_channel=None) for moments in statistical.features
    )
    return attrs.evolve(contract, statistical=attrs.evolve(statistical, features=features))


def _values(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run, without blobs that exist only in a registry."""
    return {
        key: value for key, value in training.items() if not (isinstance(value, Mapping) and "blob" in value)
    }


def prefixes(
    modules: Sequence[tuple[Blueprint, nn.Module]],
    names: str,
) -> tuple[list[str], Literal["whole", "parts"]]:
    """Return the prefix of each part's tensor names, and whether they give the names of one whole network.

    Args:
        modules: Extractor, adapters and head with their blueprints; or a single part.
        names: ``"whole"``, ``"parts"``, or ``"auto"`` for ``"whole"`` if possible.

    Raises:
        UsageError: ``names`` is unknown, or the parts do not make up a whole network.
    """
    OneOf(NAMES).check("export", names=names)
    if len(modules) == 1:
        if names == "whole":
            raise UsageError("names='whole' needs all parts of a network; a single part keeps its own names.")
        return [""], "parts"
    why = "" if names == "parts" else _why_not(modules)
    if names == "whole" and why:
        raise UsageError(f"names='whole' needs the two halves of one network; these are not: {why}")
    if names == "parts" or why:
        between = [f"adapters.{place}." for place in range(len(modules) - 2)]
        return ["extractor.", *between, "head."], "parts"
    return [""] * len(modules), "whole"


def _why_not(modules: Sequence[tuple[Blueprint, nn.Module]]) -> str:
    """Return why parts are not the halves of one network; empty if they are."""
    (left, extractor), *between, (right, head) = modules
    if between:
        return "adapters stand between them."
    if left.width is not None or right.width is not None:
        return "convolutions to a common width stand between them, which no builder makes."
    if left.network != right.network:
        return f"they are of {left.model} ({left.network[0]}) and of {right.model} ({right.network[0]})."
    state = {**extractor.state_dict(), **head.state_dict()}
    if len(state) != len(extractor.state_dict()) + len(head.state_dict()):
        return f"both hold tensors of the same name; they are cut at {left.cut} and at {right.cut}."
    try:
        with seeded(0), without_draws():
            whole_of(right).load_state_dict(state, strict=True)
    except (CompatkitError, RuntimeError, ValueError, TypeError, LookupError) as error:
        return f"{right.model} does not take them: {error}"
    return ""
