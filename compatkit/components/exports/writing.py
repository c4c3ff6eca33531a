"""Write a component, or a recombination with all its parts, as one file.

In a safetensors file the tensors have the names of one complete network if the parts are its halves. Plugins write
other formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import attrs
import torch
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
"""Format that ``load_exported`` reads; plugins write others."""


@attrs.frozen
class ExportedFile:
    """An exported file, or folder of an exporter that writes folders.

    Attributes:
        path: Path of the file or folder.
        bytes: Size in bytes, of all files of a folder.
        description: Description of the network; tensor names and digest are those of a safetensors file.
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
        path: Path of the file, in an existing directory.
        module: Module as loaded or recombined, in eval mode.
        manifest: Manifest of the component, with its probe.
        reference: Reference that the module was loaded from.
        digest: Digest of the manifest if published.
        names: See ``prefixes``.

    Raises:
        UsageError: The path is a directory, or ``names`` is not possible.
        FormatError: A tensor cannot be stored.
        EnvironmentFailure: The disk is full, or there is no write permission; an existing file is unchanged.
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
    """Write a loaded component in the format of a plugin, as a file, which is replaced if it exists, or a new folder.

    Args:
        format: Name of the exporter, such as ``"onnx"``.
        path: Path of the file or folder, in an existing directory.
        module: Module as loaded or recombined, in eval mode.
        manifest: Manifest of the component.
        settings: Keyword arguments for the exporter.
        reference: Reference that the module was loaded from.
        digest: Digest of the manifest if published.

    Raises:
        UsageError: The path is a directory, or a file where the exporter writes a folder; or there is no such
            exporter.
        PluginError: The exporter does not take these settings, or fails.
        EnvironmentFailure: The disk is full, or there is no write permission; an existing file is unchanged.
    """
    offer, file, settings = find("exporters", format), _file(path, format), settings or {}
    _, description = _described(module, manifest, reference, digest, "parts")
    tensors = _probe_inputs(manifest)
    inputs = tensors if len(tensors) == 1 else (tensors,)
    with environment("write", file), TemporaryDirectory(prefix=".export-", dir=file.parent) as folder:
        draft = Path(folder, file.name)
        with offer.called(
            settings, "exporting", f"exporting to {file} failed", "Leave global state as it is."
        ):
            offer.factory(draft, module, inputs, to_text(description), **settings)
        if not draft.exists():
            raise offer.owner.error(f"it wrote no file {draft.name}. Write to the path that is passed first.")
        if draft.is_dir() and file.exists():
            raise UsageError(f"{file} is a file, and {format} writes a folder; name a new one.", subject=file)
        sizes = [path.stat().st_size for path in (draft, *draft.rglob("*")) if path.is_file()]
        written = ExportedFile(file, sum(sizes), description)
        os.replace(draft, file)
    return written


def _probe_inputs(manifest: Manifest) -> tuple[Tensor, ...]:
    """Return inputs for a component, of the shapes of its probe."""
    shapes = probe_shapes(manifest.contract.structural, manifest.blueprint)
    dtypes = [port.dtype for port in manifest.contract.structural.inputs]
    return tuple(
        port_signal(shape, i, dtype) for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    )


def _file(path: str | os.PathLike[str], suffix: str) -> Path:
    file = Path(local(path, "an exported file"))
    if file.is_dir():
        raise UsageError(f"{file} is a directory; name a file in it, such as {file / f'network.{suffix}'}.")
    return file


def _described(
    module: nn.Module, manifest: Manifest, reference: str, digest: str | None, names: str
) -> tuple[dict[str, Tensor], Description]:
    """Return all tensors by their names in the file, and the description of the network."""
    modules = list(_modules(module, manifest, digest))
    part_prefixes, naming = prefixes(
        [(blueprint, part) for blueprint, part, _ in modules], names, _probe_inputs(manifest)[0]
    )
    state: dict[str, Tensor] = {}
    parts: list[PartRecord] = []
    for prefix, (blueprint, part, component) in zip(part_prefixes, modules, strict=True):
        own = part.state_dict()
        state |= {prefix + name: value for name, value in own.items()}
        parts.append(PartRecord(blueprint, tuple(sorted(own)), prefix, component))
    description = Description(
        kind=manifest.kind,
        blueprint=manifest.blueprint,
        contract=_without_blobs(manifest.contract),
        parts=tuple(parts),
        tensors=state_digest(state),
        names=naming,
        about=manifest.about,
        training=_training_without_blobs(manifest.training),
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


def _without_blobs(contract: Contract) -> Contract:
    """Return a contract without the channel statistics, which are blobs of a registry."""
    statistical = contract.statistical
    features = statistical.features and tuple(
        attrs.evolve(moments, per_channel=None) for moments in statistical.features
    )
    return attrs.evolve(contract, statistical=attrs.evolve(statistical, features=features))


def _training_without_blobs(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run without blobs of a registry."""
    return {
        key: value for key, value in training.items() if not (isinstance(value, Mapping) and "blob" in value)
    }


def prefixes(
    modules: Sequence[tuple[Blueprint, nn.Module]],
    names: str,
    images: Tensor,
) -> tuple[list[str], Literal["whole", "parts"]]:
    """Return the prefix of each part's tensor names, and whether they name one complete network or parts.

    Args:
        modules: Extractor, adapters and head with their blueprints; or a single part.
        names: ``"whole"``, ``"parts"``, or ``"auto"`` for ``"whole"`` if possible.
        images: Images on which the complete network must give the outputs of the parts, bit for bit.

    Raises:
        UsageError: ``names`` is unknown, or ``"whole"`` for parts that are not the halves of one network.
    """
    OneOf(NAMES).check("export", names=names)
    if len(modules) == 1:
        if names == "whole":
            raise UsageError("names='whole' needs a complete network; this is a single part.")
        return [""], "parts"
    reason = "" if names == "parts" else _why_not_whole(modules, images)
    if names == "whole" and reason:
        raise UsageError(f"names='whole' needs the two halves of one network; these are not: {reason}")
    if names == "parts" or reason:
        adapters = [f"adapters.{index}." for index in range(len(modules) - 2)]
        return ["extractor.", *adapters, "head."], "parts"
    return [""] * len(modules), "whole"


def _why_not_whole(modules: Sequence[tuple[Blueprint, nn.Module]], images: Tensor) -> str:
    """Return why parts are not the halves of one network; empty if they are.

    Equal names and shapes are not enough: parts whose arguments differ, or that are cut around a layer without weights,
    may compute something else.
    """
    (left, extractor), *adapters, (right, head) = modules
    if adapters:
        return "there are adapters between them."
    if left.width is not None or right.width is not None:
        return "there are convolutions to a common width between them, which no builder creates."
    if left.network != right.network:
        return f"they are of {left.model} ({left.network[0]}) and {right.model} ({right.network[0]})."
    state = {**extractor.state_dict(), **head.state_dict()}
    if len(state) != len(extractor.state_dict()) + len(head.state_dict()):
        return f"both have tensors of the same name; they are cut at {left.cut} and {right.cut}."
    try:
        with seeded(0), without_draws():
            whole = whole_of(right).eval()
            whole.load_state_dict(state, strict=True)
        with torch.no_grad():
            same = torch.equal(whole(images), head(extractor(images)))
    except (CompatkitError, RuntimeError, ValueError, TypeError, LookupError) as error:
        return f"{right.model} does not take them: {error}"
    if same:
        return ""
    arguments = "".join(f", {key}={value!r}" for key, value in right.kwargs.items())
    return f"{right.model}{arguments} gives other outputs with their weights than the parts do."
