"""A head for more classes: rows and names of the old ones are kept, new rows are drawn as the head's own were.

Source: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
Sec. 5.2: "we first extend the classification layer of the DCC head to handle 10 classes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.blueprints import build, class_layers, with_classes
from compatkit.contracts.contract import HEADS, Contract, Label
from compatkit.contracts.labels import common, label
from compatkit.contracts.manifest import About, Manifest, Parent
from compatkit.errors import UsageError
from compatkit.evaluation.component import Component

RELATION = "extended_from"
SELF_SUPERVISED = frozenset(
    f"regularizers.{name}" for name in ("colourisation", "contrastive", "jigsaw", "rotation_prediction")
)
"""Regularizers whose shared heads tell apart what was done to an image, not what it is of."""
SHOWN = 4
"""Outputs that a message names."""


@attrs.frozen(eq=False)
class Extended:
    """A head with more outputs, ready to be registered.

    Attributes:
        manifest: Without a probe; its payload is still that of the head that it came from.
        state: Its tensors.
    """

    manifest: Manifest
    state: Mapping[str, Tensor]


def extend(part: Component, classes: Sequence[str], *, seed: int = 0, about: About | None = None) -> Extended:
    """Return a head with further classes behind its own.

    All tensors but the class layer are the old ones, and so are that layer's rows and biases of the old classes, bit
    for bit. The new rows are those that the same network for so many classes would begin with, from ``seed``.

    Args:
        part: The head.
        classes: Names of the new classes, in the order of the new outputs.
        seed: Draws the new rows.
        about: Title, description, tags, licence and source.

    Raises:
        UsageError: It is no head with named classes, or one of a self-supervised regularizer; no class is named, one is
            there already under this or another name; or its class layer is not one linear layer or 1x1 convolution.
        UnknownName: The blueprint's builder or model is not known here.
    """
    old = part.manifest
    if old.kind not in HEADS:
        raise UsageError(
            f"Only heads tell classes apart; {part.reference} is of kind {old.kind}. Name a head or a shared head.",
            subject=part.reference,
        )
    _check_classes(part)
    labels = _labels(part.reference, old.contract.data.labels, classes)
    name, count = _class_layer(part), len(labels) - len(classes)
    blueprint = with_classes(old.blueprint, len(labels))
    state = _rows_added(part, build(blueprint, seed=seed).state_dict(), name, count)
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


def _check_classes(part: Component) -> None:
    """Refuse a shared head whose outputs are no classes of images.

    Raises:
        UsageError: A self-supervised regularizer made it.
    """
    training = part.manifest.training
    made = {str(one.get("as")): str(one.get("name")) for one in training.get("plugins") or ()}
    regularizer = made.get(str(training.get("plugin")), "")
    if regularizer in SELF_SUPERVISED:
        told = ", ".join(one.name for one in (part.manifest.contract.data.labels or ())[:SHOWN])
        raise UsageError(
            f"{part.reference} was made by {regularizer.removeprefix('regularizers.')}: what it tells apart "
            f"({told or 'outputs without names'}) are no classes of images, so that no class can be added. Name a head "
            "that tells classes apart, such as the shared head of dcc.",
            subject=part.reference,
        )


def _labels(whose: str, known: Sequence[Label] | None, classes: Sequence[str]) -> tuple[Label, ...]:
    """Return the old labels and the new ones; no two may mean the same."""
    if not known:
        raise UsageError(
            f"The outputs of {whose} have no names, so it is unknown which classes are new. Publish the head "
            "with class names first.",
            subject=whose,
        )
    if isinstance(classes, str) or not classes:
        raise UsageError(
            f"extend expects the names of at least one new class, such as ['frog']; got {classes!r}."
        )
    labels = list(known)
    for name in classes:
        twice = common([label(name)], labels)
        if twice:
            place = twice[0][1]
            raise UsageError(
                f"{name!r} cannot be added to {whose}: output {place} tells it apart already, as "
                f"{labels[place].name!r}. Leave it out, or name another class.",
                subject=name,
            )
        labels.append(label(name))
    return tuple(labels)


def _class_layer(part: Component) -> str:
    """Return the path of the one layer whose rows are the classes.

    Raises:
        UsageError: There is none, there are several, or it is something else than a linear layer or 1x1 convolution.
    """
    held = {path: one for path, one in part.module.named_modules() if path}
    named = [one for one in class_layers(part.manifest.blueprint) if one in held]
    outputs = len(part.manifest.contract.data.labels or ())
    came = ", ".join(f"{path} ({_shown(held[path])})" for path in named) or "none that its network names"
    if len(named) == 1 and _is_classifier(held[named[0]], outputs):
        return named[0]
    blueprint = part.manifest.blueprint
    raise UsageError(
        f"{part.reference} ({blueprint.model} after {blueprint.split!r}) cannot be extended: its class layer must be "
        f"one linear layer or 1x1 convolution with {outputs} outputs, one a class; came {came}. Train a head for all "
        "classes instead.",
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


def _shown(layer: nn.Module) -> str:
    return f"{type(layer).__name__} of {sum(one.numel() for one in layer.parameters()):,} parameters"


def _rows_added(part: Component, drawn: Mapping[str, Tensor], name: str, count: int) -> dict[str, Tensor]:
    """Return the tensors of the extended head.

    Args:
        part: The old head.
        drawn: A new head for all classes.
        name: Path of the class layer.
        count: Old classes.

    Raises:
        UsageError: The count of classes changes more than one layer.
    """
    old = part.module.state_dict()
    state = {}
    for key, value in old.items():
        fresh = drawn.get(key)
        rows = key.rpartition(".")[0] == name and value.shape[:1] == (count,)
        if fresh is None or fresh.shape[rows:] != value.shape[rows:] or fresh.dtype != value.dtype:
            came = "none" if fresh is None else tuple(fresh.shape)
            raise UsageError(
                f"{part.reference} cannot be extended: for more classes its network has another tensor {key!r}, "
                f"{came} in place of {tuple(value.shape)}, outside its class layer. Train a head for all "
                "classes instead.",
                subject=part.reference,
            )
        state[key] = torch.cat([value, fresh[count:]]) if rows else value.clone()
    return state


def _contract(old: Contract, labels: tuple[Label, ...]) -> Contract:
    """Return the contract for more outputs; its probe has to be taken anew."""
    (logits,) = old.structural.outputs
    shape = attrs.evolve(logits, shape=(*logits.shape[:-1], len(labels)))
    return attrs.evolve(
        old,
        structural=attrs.evolve(old.structural, outputs=(shape,)),
        data=attrs.evolve(old.data, labels=labels),
        statistical=attrs.evolve(old.statistical, probe=None),
    )
