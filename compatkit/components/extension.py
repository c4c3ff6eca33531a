"""Extend a head to more classes: old rows and names are unchanged, new rows are initialized like those of a new head.

Source: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
Sec. 5.2: "we first extend the classification layer of the DCC head to handle 10 classes".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build, class_layers, with_classes
from compatkit.contracts.contract import Contract, Label
from compatkit.contracts.kinds import HEADS
from compatkit.contracts.labels import common, label
from compatkit.contracts.manifest import About, Manifest, Parent
from compatkit.errors import UsageError
from compatkit.evaluation.component import Component
from compatkit.plugins.installed import current

RELATION = "extended_from"
SELF_SUPERVISED = frozenset(
    f"regularizers.{name}" for name in ("colorization", "contrastive", "jigsaw", "rotation_prediction")
)
"""Regularizers whose auxiliary heads classify transformations of an image, not its content."""
MAX_LISTED = 4
"""Limit of outputs listed in a message."""


@attrs.frozen(eq=False)
class Extended:
    """An extended head, ready to be registered.

    Attributes:
        manifest: Manifest without a probe; its payload is still that of the original head.
        state: Tensors of the extended head.
    """

    manifest: Manifest
    state: Mapping[str, Tensor]


def extend(part: Component, classes: Sequence[str], *, seed: int = 0, about: About | None = None) -> Extended:
    """Return a head with additional classes after its own.

    All old tensors are bitwise unchanged, including the rows and biases of the old classes in the class layer. The new
    rows are those of a new head for all classes, initialized from ``seed``.

    Args:
        part: Head to extend.
        classes: Names of the new classes, in the order of the new outputs.
        seed: Seed of the new rows.
        about: Title, description, tags, license and source.

    Raises:
        UsageError: The component is not a head with named classes, or belongs to a self-supervised regularizer;
            ``classes`` is empty, or one of them is not a string or exists under this or another name; the class layer
            is not a single linear layer or 1x1 convolution; or the seed is not an integer.
        UnknownName: The blueprint's builder or model is unknown here.
    """
    old = part.manifest
    if old.kind not in HEADS:
        raise UsageError(
            f"Expected a head or an auxiliary head; {part.reference} is of kind {old.kind}, which has no classes.",
            subject=part.reference,
        )
    _check_classes(part)
    classes = new_classes(classes)
    if type(seed) is not int:
        raise UsageError(f"seed= expects a whole number, got {seed!r:.80}.", subject=seed)
    labels = _labels(part.reference, old.contract.data.labels, classes)
    name, count = _class_layer(part), len(labels) - len(classes)
    blueprint = with_classes(old.blueprint, len(labels))
    state = _extended_state(part, build(blueprint, seed=seed).state_dict(), name, count)
    title = f"{old.about.title or part.reference}, extended by {', '.join(classes)}"
    manifest = attrs.evolve(
        old,
        kind="head",
        about=attrs.evolve(about or About(), title=about.title if about and about.title else title),
        blueprint=blueprint,
        contract=_contract(old.contract, labels),
        training={
            **{key: value for key, value in old.training.items() if key == "data"},
            "extension": {"classes": list(classes), "seed": seed},
        },
        parents=(Parent(RELATION, part.digest),),
    )
    return Extended(manifest, state)


def new_classes(classes: Any) -> list[str]:
    """Return the names of new classes.

    Raises:
        UsageError: ``classes`` is empty, or has an item that is not a string; ``subject`` is the wrong value.
    """
    several = isinstance(classes, Collection) and not isinstance(classes, str | bytes | Mapping)
    names: list[Any] = list(classes) if several else []
    wrong = next(
        (name for name in names if not isinstance(name, str) or not name.strip()), None if names else classes
    )
    if not names or wrong is not None:
        raise UsageError(
            f"extend expects the names of at least one new class, such as ['frog']; got {wrong!r:.80}.",
            subject=wrong,
        )
    return names


def _check_classes(part: Component) -> None:
    """Raise for an auxiliary head whose outputs are not classes of images.

    Raises:
        UsageError: The head belongs to a self-supervised regularizer.
    """
    training = part.manifest.training
    regularizers = {
        str(item.get("as")): current(str(item.get("name"))) for item in training.get("plugins") or ()
    }
    regularizer = regularizers.get(str(training.get("plugin")), "")
    if regularizer in SELF_SUPERVISED:
        listed = ", ".join(item.name for item in (part.manifest.contract.data.labels or ())[:MAX_LISTED])
        raise UsageError(
            f"{part.reference} was trained by {regularizer.removeprefix('regularizers.')}; its outputs "
            f"({listed or 'without names'}) are not classes of images. Name a head with classes, such as the auxiliary "
            "head of dcc.",
            subject=part.reference,
        )


def _labels(owner: str, known: Sequence[Label] | None, classes: Sequence[str]) -> tuple[Label, ...]:
    """Return the old labels followed by the new ones; no two may match."""
    if not known:
        raise UsageError(
            f"The outputs of {owner} have no class names, so new classes are unknown. Publish the head with class "
            "names first.",
            subject=owner,
        )
    labels = list(known)
    for name in classes:
        matches = common([label(name)], labels)
        if matches:
            output = matches[0][1]
            raise UsageError(
                f"{name!r} cannot be added to {owner}: output {output} has this class already, as "
                f"{labels[output].name!r}.",
                subject=name,
            )
        labels.append(label(name))
    return tuple(labels)


def _class_layer(part: Component) -> str:
    """Return the path of the class layer.

    Raises:
        UsageError: There is none, there are several, or it is not a linear layer or 1x1 convolution.
    """
    modules = {path: module for path, module in part.module.named_modules() if path}
    layers = [path for path in class_layers(part.manifest.blueprint) if path in modules]
    outputs = len(part.manifest.contract.data.labels or ())
    actual = ", ".join(f"{path} ({_described(modules[path])})" for path in layers) or "none known"
    if len(layers) == 1 and _is_classifier(modules[layers[0]], outputs):
        return layers[0]
    blueprint = part.manifest.blueprint
    raise UsageError(
        f"{part.reference} ({blueprint.model} after {blueprint.cut!r}) cannot be extended: its class layer must be "
        f"one linear layer or 1x1 convolution with {outputs} outputs, one per class; got {actual}. Train a head for "
        "all classes instead.",
        subject=part.reference,
    )


def _is_classifier(layer: nn.Module, outputs: int) -> bool:
    if isinstance(layer, nn.Linear):
        return layer.out_features == outputs
    return (
        isinstance(layer, nn.Conv2d)
        and layer.out_channels == outputs
        and layer.groups == 1
        and set(layer.kernel_size) == {1}
    )


def _described(layer: nn.Module) -> str:
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    return f"{type(layer).__name__} of {parameters:,} parameters"


def _extended_state(
    part: Component, initial: Mapping[str, Tensor], name: str, count: int
) -> dict[str, Tensor]:
    """Return the tensors of the extended head.

    Args:
        part: Old head.
        initial: Tensors of a new head for all classes.
        name: Path of the class layer.
        count: Number of old classes.

    Raises:
        UsageError: The number of classes changes more than one layer.
    """
    old = part.module.state_dict()
    state = {}
    for key, value in old.items():
        new = initial.get(key)
        rows = key.rpartition(".")[0] == name and value.shape[:1] == (count,)
        if new is None or new.shape[rows:] != value.shape[rows:] or new.dtype != value.dtype:
            shape = "none" if new is None else tuple(new.shape)
            raise UsageError(
                f"{part.reference} cannot be extended: more classes also change the tensor {key!r} outside the class "
                f"layer, from {tuple(value.shape)} to {shape}. Train a head for all classes instead.",
                subject=part.reference,
            )
        state[key] = torch.cat([value, new[count:]]) if rows else value.clone()
    return state


def _contract(old: Contract, labels: tuple[Label, ...]) -> Contract:
    """Return the contract for more outputs, without a probe."""
    (logits,) = old.structural.outputs
    shape = attrs.evolve(logits, shape=(*logits.shape[:-1], len(labels)))
    return attrs.evolve(
        old,
        structural=attrs.evolve(old.structural, outputs=(shape,)),
        data=attrs.evolve(old.data, labels=labels),
        statistical=attrs.evolve(old.statistical, probe=None),
    )
