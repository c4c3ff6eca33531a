"""Split a model from another library into parts with contracts, and publish them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.adapters.blueprints import build_pair, check_rebuilt, structural
from compatkit.adapters.cutting.planning import plan
from compatkit.adapters.cutting.proof import prove
from compatkit.adapters.modelconfig import InputSpec
from compatkit.components.drafts import Draft
from compatkit.components.registering import publish_proved
from compatkit.contracts.contract import Blueprint, Data, Label, Structural
from compatkit.contracts.contract_rules import check_labels
from compatkit.contracts.kinds import Kind
from compatkit.contracts.labels import label
from compatkit.contracts.manifest import About, Parent
from compatkit.data.transforms import KERNELS
from compatkit.errors import FormatError, UsageError
from compatkit.evaluation.component import pinned
from compatkit.evaluation.feature_statistics import SAMPLES, feature_moments
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import OneOf
from compatkit.registry.names import check_name
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.data.dataset import Split


MAX_CROP = 4
"""Maximum ``crop_pct``; contracts allow no larger one."""


@attrs.frozen(eq=False, repr=False)
class Parts(Mapping[str, Draft]):
    """A network cut in two, not published yet: drafts by ``"extractor"`` and ``"head"``.

    Attributes:
        drafts: Modules with their contracts, by side.
    """

    drafts: Mapping[str, Draft]

    def __getitem__(self, side: str) -> Draft:
        return self.drafts[side]

    def __iter__(self) -> Iterator[str]:
        return iter(self.drafts)

    def __len__(self) -> int:
        return len(self.drafts)

    @property
    def extractor(self) -> nn.Module:
        """Module from images to the features at the cut, in eval mode."""
        return self["extractor"].module

    @property
    def head(self) -> nn.Module:
        """Module from the features at the cut to class scores, in eval mode."""
        return self["head"].module

    @property
    def weights(self) -> dict[str, Tensor]:
        """State dict of the complete network, for ``Task(weights=)``."""
        return {**self.extractor.state_dict(), **self.head.state_dict()}

    def __repr__(self) -> str:
        blueprint = self["extractor"].blueprint
        sides = (
            f"{side} {sum(tensor.numel() for tensor in draft.module.parameters()):,} parameters"
            for side, draft in self.items()
        )
        return f"Parts({blueprint.model} cut at {blueprint.cut}: {', '.join(sides)})"


@checks_arguments
def split(
    model: str,
    cut: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    size: int | tuple[int, int] | None = None,
    builder: str | None = None,
    pretrained: bool = False,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    data: Split | None = None,
    samples: int = SAMPLES,
    weights: Mapping[str, Tensor] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
) -> Parts:
    """Cut ``model`` after the module ``cut``, verify that the parts reproduce it bitwise, and derive their contracts.

    Args:
        model: Model name for the builder.
        cut: Path of the module after which it is cut, or ``"forward_features"``.
        kwargs: Arguments of the builder, as JSON values.
        size: Height and width of the images, or one number for both; None for the model's own.
        builder: Builder of the model; None for the one that has a model of this name.
        pretrained: Use the library's pretrained weights instead of random ones.
        seed: Seed of the random weights.
        labels: Class names in the order of the outputs.
        data: Images for feature statistics (the statistical level): the model's training images, or similar ones.
            None omits them.
        samples: Maximum number of images for feature statistics.
        weights: All tensors of the network, instead of random ones.
        preprocessing: Settings that override the model's configuration: ``mean`` and ``std`` on the scale 0 to 1, one
            number per channel or one for all, ``interpolation``, ``crop_pct``, ``crop_mode``.

    Returns:
        The parts, which run, can be published and give a task its initial weights.

    Raises:
        UnknownName: No such model, or no such module to cut after.
        UsageError: The numbers of labels and outputs differ, images cannot be described by a contract, or both
            weights and pretrained ones are requested.
        CutError: The model cannot be cut there, the parts differ from the network or cannot be rebuilt, or they give
            random outputs in eval mode.
    """
    names = None if labels is None else tuple(map(label, labels))
    _check_labels(names)
    if pretrained and weights is not None:
        raise UsageError("weights= and pretrained=True exclude each other; pass one of them.")
    planned = plan(model, cut, kwargs=dict(kwargs or {}), size=size, builder=builder)
    taken = _data(model, _corrected(planned.input, preprocessing or {}))
    chosen = "pretrained" if pretrained else weights
    network, extractor, head = build_pair(planned.extractor, planned.head, seed=seed, weights=chosen)
    prove(network, extractor, head, planned.input.size, planned.input.channels)
    extractor.eval()
    head.eval()
    left = structural(extractor, planned.extractor)
    right = structural(head, planned.head, feature_ports=left.outputs)
    classes = right.outputs[0].channels
    if labels is not None and len(labels) != classes:
        raise UsageError(
            f"Expected one label for each of the {classes} outputs of {model}, got {len(labels)}."
        )
    moments = () if data is None else feature_moments(extractor, left.outputs, data, taken, samples=samples)
    sides: tuple[tuple[Kind, str, Blueprint, nn.Module, Structural, Data], ...] = (
        ("extractor", "up to", planned.extractor, extractor, left, taken),
        ("head", "after", planned.head, head, right, attrs.evolve(taken, labels=names)),
    )
    drafts = {
        side: Draft.of(
            side,
            blueprint,
            module,
            ports,
            described,
            moments=moments,
            title=f"{blueprint.model} {way} {blueprint.cut}",
            tags={"backbone": blueprint.model},
        )
        for side, way, blueprint, module, ports, described in sides
    }
    _check_rebuilt(drafts)
    return Parts(drafts)


def _check_labels(names: tuple[Label, ...] | None) -> None:
    """Raise for invalid class names, before anything is built."""
    try:
        check_labels(names or (), "labels")
    except FormatError as error:
        raise UsageError(f"{error} Names count from 0, in the order of the outputs.") from error


def publish_split(
    store: Store,
    parts: Mapping[str, Draft],
    prefix: str,
    *,
    training: Mapping[str, Any] | None = None,
    about: About | None = None,
) -> dict[str, str]:
    """Publish both sides as ``<prefix>.extractor`` and ``<prefix>.head``; return their references.

    Args:
        store: Registry to publish to.
        parts: Result of ``split``.
        prefix: Prefix of both names.
        training: Provenance of the weights, as JSON values.
        about: Title, description, tags, license and source of both.

    Raises:
        CutError: A part rebuilt from blueprint and weights violates its contract; nothing is written.
    """
    _check_rebuilt(parts)
    published, parents = {}, ()
    for side in ("extractor", "head"):
        part, name = parts[side], check_name(f"{prefix}.{side}")
        manifest = part.manifest(part.put(store), training or {}, parents, about or About())
        reference = publish_proved(store, name, manifest, part.module)
        published[side] = pinned(reference)
        parents = (Parent("trained_with", str(reference.digest)),)
    return published


def _check_rebuilt(parts: Mapping[str, Draft]) -> None:
    for side, part in parts.items():
        owner = f"The {side} of {part.blueprint.model} at {part.blueprint.cut!r}"
        check_rebuilt(owner, part.module, part.blueprint, part.contract)


def _corrected(spec: InputSpec, preprocessing: Mapping[str, Any]) -> InputSpec:
    """Return the model's input specification with the caller's corrections."""
    known = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    if unknown := preprocessing.keys() - set(known):
        raise UsageError(
            f"{min(unknown)!r} is not a known setting of preprocessing; known are {', '.join(known)}."
        )
    values = dict(preprocessing)
    for name in ("mean", "std"):
        if name in values:
            numbers = tuple(map(float, values[name]))
            values[name] = numbers = numbers * spec.channels if len(numbers) == 1 else numbers
            fits = all(map(isfinite, numbers)) and (name == "mean" or all(number > 0 for number in numbers))
            if len(numbers) != spec.channels or not fits:
                what = "a number" if name == "mean" else "a number above 0"
                raise UsageError(
                    f"{name}: expected {what} for each of {spec.channels} channels, or one for all, on the scale 0 "
                    f"to 1; got {numbers}."
                )
            if max(numbers) > 1:
                raise UsageError(
                    f"{name}: expected numbers on the scale 0 to 1, got {numbers}, which look like ones on the scale 0 "
                    "to 255; divide them by 255.",
                    subject=name,
                )
    OneOf(KERNELS).check("split", interpolation=values.get("interpolation", "nearest"))
    if not 0 < float(values.get("crop_pct", 1)) <= MAX_CROP:
        raise UsageError(f"Expected crop_pct above 0 and at most {MAX_CROP}, got {values['crop_pct']}.")
    return attrs.evolve(spec, **values)


def _data(model: str, spec: InputSpec) -> Data:
    """Return the data level of the contract for the model's configuration."""
    if spec.channels not in (1, 3) or spec.crop_mode not in ("center", "squash"):
        raise UsageError(
            f"{model} takes images of {spec.channels} channels, cropped by {spec.crop_mode!r}; a contract describes "
            "gray and RGB images, cropped by 'center' or 'squash'. Give in_chans=1 or 3, or another model."
        )
    return Data(
        spec.size,
        "L" if spec.channels == 1 else "RGB",
        spec.mean,
        spec.std,
        spec.interpolation,
        crop_pct=spec.crop_pct,
        crop_mode="center" if spec.crop_mode == "center" else "squash",
    )
