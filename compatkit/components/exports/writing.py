"""Write a component, or a recombination with all of its parts, as one safetensors file.

Its tensors stand under the names of one whole network where that is what the parts make.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.builders import whole_of
from compatkit.adapters.cutting.signals import port_signal
from compatkit.adapters.initialisation import seeded, without_draws
from compatkit.adapters.ports.runs import outputs_of
from compatkit.components.exports.document import Description, PartRecord, to_text
from compatkit.components.verification import probe_shapes
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError, UsageError
from compatkit.evaluation.assembly import Assembly
from compatkit.evaluation.recombination import Recombination
from compatkit.registry import disk as durable
from compatkit.registry.weights.tensorfile import pieces, state_digest

Names = Literal["auto", "whole", "parts"]
NAMES: tuple[Names, ...] = ("auto", "whole", "parts")


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
        names: See ``prefixes``.

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
    yield left.manifest.blueprint, module.extractor, left.digest
    for one in module.inserted:
        yield one.blueprint, one.module, one.digest
    yield right.manifest.blueprint, module.head, right.digest


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


def prefixes(
    modules: Sequence[tuple[Blueprint, nn.Module]],
    whole: Assembly,
    shapes: Sequence[Sequence[int]],
    names: str,
) -> tuple[list[str], Literal["whole", "parts"]]:
    """Return what stands before the names of each part, and whether these are then the names of one whole network.

    Args:
        modules: Extractor, adapters and head with their blueprints; or one part alone.
        whole: All of them as one module.
        shapes: Of the images that the whole is compared on.
        names: ``"whole"``, ``"parts"``, or ``"auto"`` for the former where it is possible.

    Raises:
        UsageError: An unknown word; or names of a whole network that the parts do not make.
    """
    if names not in NAMES:
        raise UsageError(f"names is one of {', '.join(NAMES)}, got {names!r:.40}.")
    if len(modules) == 1:
        if names == "whole":
            raise UsageError("One part alone is no whole network; its tensors keep their own names.")
        return [""], "parts"
    why = "" if names == "parts" else _why_not(modules, whole, shapes)
    if names == "whole" and why:
        raise UsageError(f"These parts are not the halves of one network, whose names they could have: {why}")
    if names == "parts" or why:
        between = [f"adapters.{place}." for place in range(len(modules) - 2)]
        return ["extractor.", *between, "head."], "parts"
    return [""] * len(modules), "whole"


def _why_not(
    modules: Sequence[tuple[Blueprint, nn.Module]], whole: Assembly, shapes: Sequence[Sequence[int]]
) -> str:
    """Return why parts are not the halves of one network, as it would say itself; empty where they are."""
    (left, extractor), *between, (right, head) = modules
    if between:
        return "adapters stand between them."
    if left.width is not None or right.width is not None:
        return "convolutions to a common width stand between them, which no builder makes."
    if (left.builder, left.model) != (right.builder, right.model):
        return f"they are of {left.model} ({left.builder}) and of {right.model} ({right.builder})."
    state = {**extractor.state_dict(), **head.state_dict()}
    if len(state) != len(extractor.state_dict()) + len(head.state_dict()):
        return f"both hold tensors of the same name; they are cut at {left.split} and at {right.split}."
    try:
        made = _loaded(right, state)
        same = _same(made, whole, shapes)
    except (CompatkitError, RuntimeError, ValueError, TypeError, LookupError) as error:
        return f"{right.model} does not take them: {error}"
    return "" if same else f"{right.model} with their tensors gives other outputs than they do."


def _loaded(blueprint: Blueprint, state: dict[str, Tensor]) -> nn.Module:
    with seeded(0), without_draws():
        made = whole_of(blueprint)
    made.load_state_dict(state, strict=True)
    return made.eval()


def _same(made: nn.Module, whole: Assembly, shapes: Sequence[Sequence[int]]) -> bool:
    """Tell whether a network gives, bit for bit, what the parts give with their stored statistics."""
    images = [port_signal(shape, place, "float32") for place, shape in enumerate(shapes)]
    with torch.no_grad():
        (expected,), came = outputs_of(_Stored(whole), images), outputs_of(made, images)
    return len(came) == 1 and torch.equal(expected, came[0])


class _Stored(nn.Module):
    """An assembly with its stored statistics, whatever its policy."""

    def __init__(self, whole: Assembly) -> None:
        super().__init__()
        self.whole = whole.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.whole.through(images)
